//! Dockerfile actions: built by buildah, which needs no daemon, in a container, and imported into the store.

mod bases;
mod container;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bases::Bases;
pub use container::BuildSite;

use super::backend::EngineBackend;
use crate::bundle::{BundleError, volume_users};
use crate::container::Engine;
use crate::container_hook::dockerfile::{
    ConfigureError, ContextError, HereDocument, LIMITS, Target, allow_all_images, configure,
    images_of, take,
};
use crate::image::{
    Algorithm, Credentials, Digest, Hasher, Image, ImportError, Platform, PullError, Reference,
    StoreError,
};
use crate::runtime::{DEFAULT_PATH, FindError, find};
use crate::sys::error::chain;
use crate::sys::fs::{PathContext as _, PathError, make_private};
use crate::sys::lock::{BRIEF, FileLock};
use crate::sys::trash::Trash;
use crate::sys::usage::disk_bytes;

/// Where each user's runners have a directory for what buildah keeps and what is built from, or several if they build at
/// the same time: `0`, `0.1`; and the lock that each build shares.
const BUILDAH: &str = "buildah";
const LOCK: &str = "buildah.lock";

/// How long a build that another process began may take to be done.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is kept for the next builds of a user, in its directory.
const STORAGE: &str = "storage";
/// buildah's own store in it, which containers have as a volume.
const STORE: &str = "store";
/// What the build locks that uses the store.
const STORE_LOCK: &str = ".store.build";
/// What is known of the images in that store which builds begin with.
const BASES: &str = "bases";

/// What the names of the directories of single builds begin with.
const SCRATCH_PREFIX: &str = "build-";

/// Who owns what a build is given, as root of its container sees it.
const OWNER: (u32, u32) = (0, 0);

/// An image could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no buildah.
    #[error(
        "a Dockerfile action needs buildah: install it (apt install buildah, dnf install buildah), or \
         use an action with a published image"
    )]
    NoBuildah(#[source] FindError),
    /// Another container than that of a step names a Dockerfile.
    #[error("only a container action can be built from a Dockerfile")]
    NotAStep,
    /// The Dockerfile's directory cannot be built from.
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("buildah ended with {status}; see its output above")]
    Failed { status: std::process::ExitStatus },
    /// It failed, and the Dockerfile has what it does not know.
    #[error(
        "buildah ended with {status}; see its output above. Line {line} of the Dockerfile begins a here-document, which \
         buildah {found} does not know: install buildah {} or newer, or write the lines without one",
        HereDocument::SINCE
    )]
    HereDocument { status: std::process::ExitStatus, line: usize, found: String },
    /// Root of the container would be root of the machine.
    #[error("a Dockerfile action needs a user namespace, which the network of this job has not")]
    NoUserNamespace,
    /// An image that the build begins with cannot be had.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// What it built cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// It cannot be told of registries.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The store cannot say whether it was built before.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot be told who uses what buildah keeps.
    #[error(transparent)]
    Users(#[from] BundleError),
}

/// What a container is made from.
pub enum Source {
    Image(Box<Image>),
    Dockerfile(Box<Build>),
}

/// A build that can begin: with its context, its images, and nothing of it in a container yet.
pub struct Build {
    /// What is shown of the Dockerfile.
    dockerfile: PathBuf,
    /// The Dockerfile in the context.
    file_name: String,
    here_document: Option<HereDocument>,
    /// What the image will be called.
    reference: Reference,
    /// buildah.
    program: PathBuf,
    bases: Bases,
    /// The directory of what is kept for the next builds.
    storage: PathBuf,
    scratch: Scratch,
    /// Keeps others from removing what belongs to the build, and other builds from the store.
    _locks: [FileLock; 2],
}

/// The directory of one build, which ends with it.
struct Scratch {
    path: PathBuf,
    trash: Trash,
    /// Whether the build was killed: then the directory stays for [`sweep`], which takes what buildah keeps with it.
    was_killed: bool,
}

impl Scratch {
    /// What a build is given, read-only: the context, the home directory, and images.
    const GIVEN: &str = "given";
    const CONTEXT: &str = "context";
    const HOME: &str = "home";
    const IMAGES: &str = "images";
    /// What it makes: the image, as an OCI layout, and temporary files.
    const LAYOUT: &str = "layout";
    const TEMPORARY: &str = "tmp";

    fn make(own: &Path, trash: Trash) -> Result<Self, PathError> {
        let unique = crate::sys::fs::random_u64();
        let path = own.join(format!("{SCRATCH_PREFIX}{unique:016x}"));
        let scratch = Scratch { path, trash, was_killed: false };
        make_private(&scratch.path)?;
        for name in [Scratch::CONTEXT, Scratch::HOME, Scratch::IMAGES] {
            make_private(&scratch.given(name))?;
        }
        for name in [Scratch::LAYOUT, Scratch::TEMPORARY] {
            make_private(&scratch.path.join(name))?;
        }
        Ok(scratch)
    }

    fn given(&self, name: &str) -> PathBuf {
        self.path.join(Scratch::GIVEN).join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.was_killed {
            // What cannot be removed now is found by its name.
            let _ = self.trash.remove(&self.path);
        }
    }
}

/// Begins to build a Dockerfile with its directory as context, unless the same has been built before for the
/// runner's user.
pub fn begin(
    backend: &EngineBackend<'_>,
    dockerfile: &Path,
    credentials: &Credentials,
) -> Result<Source, BuildError> {
    let (engine, log) = (backend.engine, backend.context.log);
    // What runners of one user make, with their access, is nothing to those of others.
    let (uid, _) = backend.context.runner.user;
    make_private(&engine.disk)?;
    // The runner has no cleanup for jobs whose only containers are those of steps.
    if let Err(error) = sweep(&engine.disk, &engine.trash(), None, Duration::ZERO) {
        log.warning(&chain(&error));
    }
    // Before anything is made, which could be removed as something that a killed build left.
    let lock = FileLock::shared(&engine.disk.join(LOCK), BRIEF)?;
    let (own, store_lock) = take_directory(&engine.disk, uid)?;
    let storage = own.join(STORAGE);
    let scratch = Scratch::make(&own, engine.trash())?;
    let context = scratch.given(Scratch::CONTEXT);
    let target = Target { dir: &context, owner: OWNER };
    let digest = take(&backend.context.runner.files, dockerfile, &target, LIMITS)?;
    let file_name = dockerfile.file_name().unwrap_or_default();
    let reference = reference(uid, file_name, &digest);
    if let Some(image) = engine.store.hold(&reference, &Platform::host())? {
        log.line(&format!("{} has not changed since it was built", dockerfile.display()));
        return Ok(Source::Image(Box::new(image)));
    }
    let options = &backend.settings.build;
    let program = find(&[options.program.as_os_str()], Some(DEFAULT_PATH.as_ref()), None)
        .map_err(BuildError::NoBuildah)?;
    let images = images_of(&context, file_name);
    let home = scratch.given(Scratch::HOME);
    configure(&home, OWNER, backend.registries, &images)?;
    allow_all_images(&home, OWNER)?;
    let known = storage.join(BASES);
    let directories = scratch.given(Scratch::IMAGES);
    let bases = bases::download_all(backend, credentials, &images, &directories, &known)?;
    Ok(Source::Dockerfile(Box::new(Build {
        dockerfile: dockerfile.to_owned(),
        // It is a text of the request.
        file_name: file_name.to_string_lossy().into_owned(),
        here_document: HereDocument::first_of(&context, file_name),
        reference,
        program,
        bases,
        storage,
        scratch,
        _locks: [lock, store_lock],
    })))
}

/// Takes the first directory of a user that no other build has. buildah waits for another one that is stopped, as by
/// what its Dockerfile runs, while that has a lock of the store: for as long as it takes.
fn take_directory(disk: &Path, uid: u32) -> Result<(PathBuf, FileLock), PathError> {
    let mut number = 0;
    loop {
        let name = if number == 0 { uid.to_string() } else { format!("{uid}.{number}") };
        let own = disk.join(BUILDAH).join(name);
        let storage = own.join(STORAGE);
        make_private(&storage.join(BASES))?;
        if let Some(lock) = FileLock::try_exclusive(&storage.join(STORE_LOCK))? {
            return Ok((own, lock));
        }
        number += 1;
    }
}

/// What was removed of builds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemovedBuilds {
    /// How many directories of users, with all that buildah keeps there.
    pub caches: usize,
    /// About how much of the disk became free, by what killed builds left too.
    pub freed_bytes: u64,
}

impl RemovedBuilds {
    fn remove(&mut self, path: &Path, trash: &Trash) -> Result<(), PathError> {
        // A file, or gone meanwhile: then it is next to nothing.
        let bytes = disk_bytes(path).unwrap_or_default();
        trash.remove(path)?;
        self.freed_bytes += bytes;
        Ok(())
    }

    /// Removes what killed builds of a user left, unless a container still has it. buildah keeps the containers that it
    /// built in, and the kernel what was written half: of that nobody but buildah can tell what is whole, so all of
    /// it goes.
    fn remove_killed(&mut self, own: &Path, trash: &Trash) -> Result<(), BuildError> {
        // Each build has one for as long as anything else of it is there.
        let scratches = named(own, |name| name.starts_with(SCRATCH_PREFIX))?;
        if scratches.is_empty() || is_used(own)? {
            return Ok(());
        }
        self.remove(&own.join(STORAGE), trash)?;
        Ok(scratches.iter().try_for_each(|path| self.remove(path, trash))?)
    }
}

/// Returns whether a container has what buildah keeps for a user: that of a build whose process was killed.
fn is_used(own: &Path) -> Result<bool, BuildError> {
    let store = own.join(STORAGE).join(STORE);
    Ok(store.exists() && !volume_users(&store)?.0.is_empty())
}

/// Removes what killed builds left, and all that buildah keeps for a user whose last build was so long
/// ago. Nothing while a build is going on.
pub fn remove_builds(
    disk: &Path,
    trash: &Trash,
    unused_for: Option<Duration>,
) -> Result<RemovedBuilds, BuildError> {
    sweep(disk, trash, unused_for, PATIENCE)
}

/// Removes what builds of a job left, with all that buildah keeps if that is the job's alone: its files
/// belong to users that are known to nobody after the job of an ordinary user.
pub fn remove_of_job(engine: &Engine) -> Result<(), BuildError> {
    let unused_for = engine.privilege.has_own_users().then_some(Duration::ZERO);
    remove_builds(&engine.disk, &engine.trash(), unused_for).map(drop)
}

/// Removes the same, and waits so long for a build that is going on.
fn sweep(
    disk: &Path,
    trash: &Trash,
    unused_for: Option<Duration>,
    patience: Duration,
) -> Result<RemovedBuilds, BuildError> {
    let all = disk.join(BUILDAH);
    let mut removed = RemovedBuilds::default();
    if !all.exists() {
        return Ok(removed);
    }
    let lock = FileLock::try_exclusive_for(&disk.join(LOCK), patience)?;
    let Some(_lock) = lock else { return Ok(removed) };
    for entry in fs::read_dir(&all).at("list", &all)? {
        let entry = entry.at("list", &all)?;
        let path = entry.path();
        let is_old = unused_for.is_some_and(|limit| age(&path).is_ok_and(|age| age >= limit));
        if is_old && !is_used(&path)? {
            removed.remove(&path, trash)?;
            removed.caches += 1;
            continue;
        }
        removed.remove_killed(&path, trash)?;
    }
    Ok(removed)
}

/// Returns how long ago there was a build of a user: each makes and removes a directory there.
fn age(path: &Path) -> Result<Duration, PathError> {
    let used = path.metadata().and_then(|metadata| metadata.modified()).at("look at", path)?;
    Ok(used.elapsed().unwrap_or_default())
}

/// Returns what has certain names in a directory.
fn named(dir: &Path, is_meant: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, PathError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).at("list", dir)? {
        let entry = entry.at("list", dir)?;
        if entry.file_name().to_str().is_some_and(&is_meant) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// Returns the name of what a Dockerfile and its context make for a user: the same content, the same
/// name.
fn reference(uid: u32, dockerfile: &OsStr, context: &Digest) -> Reference {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hasher.update(&uid.to_le_bytes());
    hasher.update(context.hex().as_bytes());
    hasher.update(dockerfile.as_bytes());
    let text = format!("localhost/dockerfile-action:{}", &hasher.finish().hex()[..32]);
    text.parse().expect("hexadecimal digits are a tag")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove(disk: &Path, unused_for: Option<Duration>) -> RemovedBuilds {
        remove_builds(disk, &Trash::of(disk), unused_for).unwrap()
    }

    #[test]
    fn builds_are_removed_by_age_but_not_while_one_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let all = dir.path().join(BUILDAH);
        let names = |of: &str| {
            let entries = fs::read_dir(all.join(of)).into_iter().flatten().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        let (hour, now) = (Some(Duration::from_secs(3600)), Some(Duration::ZERO));
        assert_eq!(remove(dir.path(), now).caches, 0);
        for name in ["storage/store/root/overlay", "storage/bases", "build-1/given/context/a"] {
            fs::create_dir_all(all.join("1000").join(name)).unwrap();
        }
        let build = FileLock::shared(&dir.path().join(LOCK), BRIEF).unwrap();
        assert_eq!(remove(dir.path(), now).caches, 0);
        assert_eq!(names("1000").len(), 2);
        drop(build);
        assert_eq!(remove(dir.path(), None).caches, 0);
        assert!(names("1000").is_empty(), "one was killed");
        fs::create_dir_all(all.join("1000/storage/store")).unwrap();
        fs::write(all.join("1000/storage/store/file"), vec![1; 1 << 20]).unwrap();
        for age in [None, hour] {
            assert_eq!(remove(dir.path(), age).caches, 0);
            assert_eq!(names("1000"), ["storage"]);
        }
        // A container has it whose build was killed.
        fs::create_dir_all(all.join("1000/build-1")).unwrap();
        let users = all.join("1000/storage/.store.users");
        fs::write(&users, serde_json::to_vec(&[dir.path()]).unwrap()).unwrap();
        for age in [None, now] {
            assert_eq!(remove(dir.path(), age), RemovedBuilds::default());
        }
        fs::remove_file(users).unwrap();
        fs::remove_dir(all.join("1000/build-1")).unwrap();
        let removed = remove(dir.path(), now);
        assert_eq!(removed.caches, 1);
        assert!((1 << 20..2 << 20).contains(&removed.freed_bytes), "{removed:?}");
        assert!(names("").is_empty());
    }

    #[test]
    fn each_build_has_a_store_that_no_other_uses() {
        let dir = tempfile::tempdir().unwrap();
        let take = || {
            let (own, lock) = take_directory(dir.path(), 1000).unwrap();
            (own.file_name().unwrap().to_owned(), lock)
        };
        let (first, second) = (take(), take());
        assert_eq!([&first.0, &second.0], ["1000", "1000.1"]);
        assert_eq!(remove(dir.path(), None), RemovedBuilds::default());
        drop(first);
        assert_eq!(take().0, "1000");
        drop(second);
        assert_eq!(remove(dir.path(), Some(Duration::ZERO)).caches, 2);
    }

    #[test]
    fn what_is_built_has_the_name_of_its_content_and_of_its_user() {
        let name = |uid, file: &str, content: &str| {
            reference(uid, file.as_ref(), &Digest::of(content.as_bytes())).to_string()
        };
        let first = name(1000, "Dockerfile", "a");
        assert_eq!(first, name(1000, "Dockerfile", "a"));
        for other in [
            name(1001, "Dockerfile", "a"),
            name(1000, "Dockerfile.ci", "a"),
            name(1000, "Dockerfile", "b"),
        ] {
            assert_ne!(first, other);
        }
    }
}
