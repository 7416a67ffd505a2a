//! Builds Dockerfile actions with buildah, which needs no daemon, in a container, and imports the images.

mod bases;
mod container;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use bases::Bases;
pub use container::BuildSite;
use oci_hooks_engine::bundle::{BundleError, volume_users};
use oci_hooks_engine::container::Engine;
use oci_hooks_files::error::chain;
use oci_hooks_files::find::{DEFAULT_PATH, FindError, find};
use oci_hooks_files::fs::{PathContext as _, PathError, make_private, random_u64};
use oci_hooks_files::lock::{BRIEF, FileLock};
use oci_hooks_host::trash::Trash;
use oci_hooks_host::usage::disk_bytes;
use oci_hooks_image::{
    Credentials, Digest, HashAlgorithm, Hasher, Image, ImageReference, ImportError, Platform,
    PullError, StoreError,
};

use super::backend::EngineBackend;
use crate::dockerfile::{
    ConfigureError, ContextError, HereDocument, LIMITS, SnapshotTarget, allow_all_images,
    configure, images_of, take,
};

/// Directory with a subdirectory for each user's runners, with buildah's store and build contexts; concurrent builds
/// of a user have more: `0`, `0.1`. And the lock that all builds share.
const BUILDAH: &str = "buildah";
const LOCK: &str = "buildah.lock";

/// Time to wait for builds of other processes before removing leftovers.
const PATIENCE: Duration = Duration::from_millis(500);

/// Cache for the next builds of a user, in its directory.
const STORAGE: &str = "storage";
/// buildah's store in the cache, which build containers mount as a volume.
const STORE: &str = "store";
/// Lock of the build that uses the store.
const STORE_LOCK: &str = ".store.build";
/// Records of the base images in the store.
const BASES: &str = "bases";

/// Prefix of the names of single builds' directories.
const SCRATCH_PREFIX: &str = "build-";
/// Prefix of the new names of directories that are about to be removed.
const TAKEN_PREFIX: &str = "removed-";

/// Owner of a build's input files, as seen in its container.
const OWNER: (u32, u32) = (0, 0);

/// Errors of building an image.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(
        "a Dockerfile action needs buildah: install it (apt install buildah, dnf install buildah), or \
         use an action with a published image"
    )]
    NoBuildah(#[source] FindError),
    /// A job container or service names a Dockerfile.
    #[error("only a container action can be built from a Dockerfile")]
    NotAStep,
    /// The build context cannot be copied.
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("buildah ended with {status}; see its output above")]
    Failed { status: std::process::ExitStatus },
    /// buildah failed, and the Dockerfile has a here-document, which this version does not support.
    #[error(
        "buildah ended with {status}; see its output above. Line {line} of the Dockerfile begins a here-document, which \
         buildah {found} does not support: install buildah {} or newer, or write the lines without one",
        HereDocument::SINCE
    )]
    HereDocument { status: std::process::ExitStatus, line: usize, found: String },
    /// Root in the container would be root on the host.
    #[error("a Dockerfile action needs a user namespace, but the network of this job has none")]
    NoUserNamespace,
    /// A base image cannot be pulled.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The built image cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The registry configuration cannot be written.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The store cannot be searched for an earlier build.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The containers that use buildah's store cannot be read.
    #[error(transparent)]
    Users(#[from] BundleError),
}

/// The image of a container, or the build of its Dockerfile.
pub enum ImageOrBuild {
    Image(Box<Image>),
    Dockerfile(Box<PreparedBuild>),
}

/// A prepared build, with its context and base images, before its container is created.
pub struct PreparedBuild {
    /// Path of the Dockerfile, for messages.
    dockerfile: PathBuf,
    /// Name of the Dockerfile in the context.
    file_name: String,
    here_document: Option<HereDocument>,
    /// Name of the image to build.
    reference: ImageReference,
    program: PathBuf,
    bases: Bases,
    /// Directory of the cache for the next builds.
    storage: PathBuf,
    scratch: BuildScratch,
    /// Prevent the removal of the build's directories, and other builds in the same store.
    _locks: [FileLock; 2],
}

/// The directory of a single build, removed with it.
struct BuildScratch {
    path: PathBuf,
    trash: Trash,
    /// Set if the build was killed: the directory is then kept for [`TakenBuilds`], which removes it with buildah's store.
    was_killed: bool,
}

impl BuildScratch {
    /// Read-only input of a build: the context, the home directory, and base images.
    const GIVEN: &str = "given";
    const CONTEXT: &str = "context";
    const HOME: &str = "home";
    const IMAGES: &str = "images";
    /// Output of a build: the image, as an OCI layout, and temporary files.
    const LAYOUT: &str = "layout";
    const TEMPORARY: &str = "tmp";

    fn make(own: &Path, trash: Trash) -> Result<Self, PathError> {
        let unique = random_u64();
        let path = own.join(format!("{SCRATCH_PREFIX}{unique:016x}"));
        let scratch = BuildScratch { path, trash, was_killed: false };
        make_private(&scratch.path)?;
        for name in [BuildScratch::CONTEXT, BuildScratch::HOME, BuildScratch::IMAGES] {
            make_private(&scratch.given_path(name))?;
        }
        for name in [BuildScratch::LAYOUT, BuildScratch::TEMPORARY] {
            make_private(&scratch.path.join(name))?;
        }
        Ok(scratch)
    }

    fn given_path(&self, name: &str) -> PathBuf {
        self.path.join(BuildScratch::GIVEN).join(name)
    }
}

impl Drop for BuildScratch {
    fn drop(&mut self) {
        if !self.was_killed {
            // Leftovers are found by their name.
            let _ = self.trash.remove(&self.path);
        }
    }
}

/// Prepares the build of a Dockerfile with its directory as context; returns the image if the same content has been
/// built before for the runner's user.
pub fn begin(
    backend: &EngineBackend<'_>,
    dockerfile: &Path,
    credentials: &Credentials,
) -> Result<ImageOrBuild, BuildError> {
    let (engine, log) = (backend.engine, backend.context.log);
    // Runners of different users share no builds: a context may have files that only its user can read.
    let (uid, _) = backend.context.runner.user;
    make_private(&engine.disk)?;
    // The runner calls no `cleanup_job` for jobs that have only container steps.
    let trash = engine.trash();
    let taken = TakenBuilds::of(&engine.disk, &trash, None, Duration::ZERO);
    if let Err(error) = taken.and_then(|taken| taken.remove(&trash)) {
        log.warning(&chain(&error));
    }
    // Taken before any directory is created: without the lock, it could be removed as a leftover of a killed build.
    let lock = FileLock::acquire_shared(&engine.disk.join(LOCK), BRIEF)?;
    let (own, store_lock) = take_directory(&engine.disk, uid)?;
    let storage = own.join(STORAGE);
    let scratch = BuildScratch::make(&own, engine.trash())?;
    let context = scratch.given_path(BuildScratch::CONTEXT);
    let target = SnapshotTarget { dir: &context, owner: OWNER };
    let digest = take(&backend.context.runner.files, dockerfile, &target, LIMITS)?;
    let file_name = dockerfile.file_name().unwrap_or_default();
    let reference = reference(uid, file_name, &digest);
    if let Some(image) = engine.store.hold(&reference, &Platform::host())? {
        log.line(&format!("{} has not changed since it was built", dockerfile.display()));
        return Ok(ImageOrBuild::Image(Box::new(image)));
    }
    let options = &backend.settings.build;
    let program = find(&[options.program.as_os_str()], Some(DEFAULT_PATH.as_ref()), None)
        .map_err(BuildError::NoBuildah)?;
    let images = images_of(&context, file_name);
    let home = scratch.given_path(BuildScratch::HOME);
    configure(&home, OWNER, backend.registries, &images)?;
    allow_all_images(&home, OWNER)?;
    let known = storage.join(BASES);
    let directories = scratch.given_path(BuildScratch::IMAGES);
    let bases = bases::download_all(backend, credentials, &images, &directories, &known)?;
    Ok(ImageOrBuild::Dockerfile(Box::new(PreparedBuild {
        dockerfile: dockerfile.to_owned(),
        // Lossless: the name comes from the JSON of the request.
        file_name: file_name.to_string_lossy().into_owned(),
        here_document: HereDocument::find_first(&context, file_name),
        reference,
        program,
        bases,
        storage,
        scratch,
        _locks: [lock, store_lock],
    })))
}

/// Takes the first directory of a user that no other build uses. In a shared store, buildah would wait without limit
/// for the lock of another buildah, even if a command of its Dockerfile has stopped that process.
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

/// The result of removing builds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedBuilds {
    /// Number of users' directories, with their caches of buildah.
    pub caches: usize,
    /// Approximate freed disk space, including leftovers of killed builds.
    pub freed_bytes: u64,
}

impl RemovedBuilds {
    fn remove(&mut self, path: &Path, trash: &Trash) -> Result<(), PathError> {
        // Files, and directories removed meanwhile, count as 0 bytes.
        let bytes = disk_bytes(path).unwrap_or_default();
        trash.remove(path)?;
        self.freed_bytes += bytes;
        Ok(())
    }
}

/// Directories with new names, to be removed when other builds need not wait for it: a build may have made millions of
/// files. Those of a killed call are taken by the next one.
#[derive(Default)]
struct TakenBuilds {
    paths: Vec<PathBuf>,
    removed: RemovedBuilds,
    /// The first error of taking directories.
    failed: Option<BuildError>,
}

impl TakenBuilds {
    /// Takes all that [`remove_builds`] removes, and waits up to `patience` for running builds.
    fn of(
        disk: &Path,
        trash: &Trash,
        unused_for: Option<Duration>,
        patience: Duration,
    ) -> Result<Self, BuildError> {
        let all = disk.join(BUILDAH);
        let mut taken = Self::default();
        if !all.exists() {
            return Ok(taken);
        }
        let lock = FileLock::try_exclusive_for(&disk.join(LOCK), patience)?;
        let Some(_lock) = lock else { return Ok(taken) };
        taken.paths = find_entries(&all, |name| name.starts_with(TAKEN_PREFIX))?;
        for path in find_entries(&all, |name| !name.starts_with(TAKEN_PREFIX))? {
            if let Err(error) = taken.take_of_user(&path, trash, unused_for) {
                taken.failed.get_or_insert(error);
            }
        }
        Ok(taken)
    }

    /// Takes the cache of a user if it is old, and otherwise leftovers of killed builds, unless a container still uses
    /// them. The store of a killed buildah may have working containers and half-written layers that only buildah can
    /// recognise, so the whole store is removed.
    fn take_of_user(
        &mut self,
        own: &Path,
        trash: &Trash,
        unused_for: Option<Duration>,
    ) -> Result<(), BuildError> {
        let is_old = unused_for.is_some_and(|limit| age(own).is_ok_and(|age| age >= limit));
        if is_old && !is_used(own)? {
            self.take(own, own, trash)?;
            self.removed.caches += 1;
            return Ok(());
        }
        // A build has a scratch directory for as long as other leftovers of it exist.
        let scratches = find_entries(own, |name| name.starts_with(SCRATCH_PREFIX))?;
        if scratches.is_empty() || is_used(own)? {
            return Ok(());
        }
        self.take(own, &own.join(STORAGE), trash)?;
        Ok(scratches.iter().try_for_each(|path| self.take(own, path, trash))?)
    }

    /// Takes a directory of a user, or the user's own.
    fn take(&mut self, own: &Path, path: &Path, trash: &Trash) -> Result<(), PathError> {
        let taken = own.with_file_name(format!("{TAKEN_PREFIX}{:016x}", random_u64()));
        match fs::rename(path, &taken) {
            Ok(()) => self.paths.push(taken),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // As if it is on a file system of its own.
            Err(_) => self.removed.remove(path, trash)?,
        }
        Ok(())
    }

    fn remove(mut self, trash: &Trash) -> Result<RemovedBuilds, BuildError> {
        let mut outcome = self.failed.take().map_or(Ok(()), Err);
        for path in &self.paths {
            outcome = outcome.and(self.removed.remove(path, trash).map_err(BuildError::from));
        }
        outcome.map(|()| self.removed)
    }
}

/// Returns whether a container uses buildah's store of a user: the container of a killed build may still run.
fn is_used(own: &Path) -> Result<bool, BuildError> {
    let store = own.join(STORAGE).join(STORE);
    Ok(store.exists() && !volume_users(&store)?.0.is_empty())
}

/// Removes leftovers of killed builds, and the caches of users without a build for `unused_for`. Removes nothing
/// while a build runs.
pub fn remove_builds(
    disk: &Path,
    trash: &Trash,
    unused_for: Option<Duration>,
) -> Result<RemovedBuilds, BuildError> {
    TakenBuilds::of(disk, trash, unused_for, PATIENCE)?.remove(trash)
}

/// Removes leftovers of a job's builds. For a rootless user, also removes buildah's cache, whose files belong to ids
/// that are unmapped after the job.
pub fn remove_of_job(engine: &Engine) -> Result<(), BuildError> {
    let unused_for = engine.privilege.has_own_users().then_some(Duration::ZERO);
    remove_builds(&engine.disk, &engine.trash(), unused_for).map(drop)
}

/// Returns the time since the last build of a user: each build creates and removes a directory there.
fn age(path: &Path) -> Result<Duration, PathError> {
    let used =
        path.metadata().and_then(|metadata| metadata.modified()).with_path("inspect", path)?;
    Ok(used.elapsed().unwrap_or_default())
}

/// Returns the entries of a directory whose names match.
fn find_entries(dir: &Path, is_meant: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, PathError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).with_path("list", dir)? {
        let entry = entry.with_path("list", dir)?;
        if entry.file_name().to_str().is_some_and(&is_meant) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// Returns the image name of a Dockerfile and its context for a user: the same content has the same name.
fn reference(uid: u32, dockerfile: &OsStr, context: &Digest) -> ImageReference {
    let mut hasher = Hasher::new(HashAlgorithm::Sha256);
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
    fn builds_are_removed_by_age_unless_they_are_running() {
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
        let build = FileLock::acquire_shared(&dir.path().join(LOCK), BRIEF).unwrap();
        assert_eq!(remove(dir.path(), now).caches, 0);
        assert_eq!(names("1000").len(), 2);
        drop(build);
        assert_eq!(remove(dir.path(), None).caches, 0);
        assert!(names("1000").is_empty(), "one was killed");
        // Other builds need not wait for the removal.
        fs::create_dir_all(all.join("1000/build-1")).unwrap();
        let trash = Trash::of(dir.path());
        let take = || TakenBuilds::of(dir.path(), &trash, None, Duration::ZERO).unwrap();
        let killed = take();
        assert!(names("1000").is_empty());
        assert_eq!(names("").len(), 2);
        drop(FileLock::try_exclusive(&dir.path().join(LOCK)).unwrap().expect("it is free"));
        // The call may be killed, and another entry be unusable.
        drop(killed);
        fs::write(all.join("stray"), "").unwrap();
        take().remove(&trash).unwrap_err();
        assert_eq!(names(""), ["1000", "stray"]);
        fs::remove_file(all.join("stray")).unwrap();
        fs::create_dir_all(all.join("1000/storage/store")).unwrap();
        fs::write(all.join("1000/storage/store/file"), vec![1; 1 << 20]).unwrap();
        for age in [None, hour] {
            assert_eq!(remove(dir.path(), age).caches, 0);
            assert_eq!(names("1000"), ["storage"]);
        }
        // The container of a killed build uses the store.
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
    fn each_build_has_its_own_store() {
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
    fn built_images_are_named_by_content_and_user() {
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
