//! Dockerfile actions: built by buildah, which needs no daemon, and imported into the store.

mod program;
mod pull;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use program::Buildah;

use super::backend::EngineBackend;
use crate::bundle::{self, Dns};
use crate::container::Engine;
use crate::container_hook::dockerfile::{
    ConfigureError, ContextError, LIMITS, Target, configure, images_of, take,
};
use crate::image::{
    Algorithm, Credentials, Digest, Hasher, HelperError, Image, ImportError, Platform, Reference,
    StoreError,
};
use crate::network::Network;
use crate::runtime::{DEFAULT_PATH, FindError, find};
use crate::sys::confine::ConfinedIds;
use crate::sys::error::chain;
use crate::sys::fs::{PathContext as _, PathError, make_private};
use crate::sys::lock::{BRIEF, FileLock};
use crate::sys::rollback::Rollback;
use crate::sys::trash::Trash;
use crate::sys::usage::disk_bytes;

/// Where each user's runners have a directory, by its number, for buildah's storage and what is built
/// from; and the lock that each build shares.
const BUILDAH: &str = "buildah";
const LOCK: &str = "buildah.lock";

/// How long the processes of a killed build may take to be gone.
const DYING: Duration = Duration::from_millis(500);

/// What the names of results in it begin with.
const LAYOUT: &str = "layout-";

/// What the names of copied contexts begin with.
const CONTEXT_PREFIX: &str = "context-";

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
    /// The Dockerfile's directory cannot be built from.
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("buildah {action} ended with {status}; see its output above")]
    Failed {
        /// `build` or `push`.
        action: &'static str,
        status: std::process::ExitStatus,
    },
    /// What it built cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// It cannot be told of registries.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The login for an image could not be found out.
    #[error(transparent)]
    Helper(#[from] HelperError),
    /// The store cannot say whether it was built before.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Builds a Dockerfile with its directory as context, unless the same has been built before for the
/// runner's user.
pub(super) fn build(
    backend: &EngineBackend<'_>,
    dockerfile: &Path,
    credentials: &Credentials,
) -> Result<Image, BuildError> {
    let (engine, options, log) = (backend.engine, &backend.settings.build, backend.context.log);
    // What runners of one user make, with their access, is nothing to those of others.
    let (uid, _) = backend.context.runner.user;
    let own = engine.disk.join(BUILDAH).join(uid.to_string());
    let storage = own.join("storage");
    let temporary = storage.join("tmp");
    make_private(&engine.disk)?;
    // Nobody else may do so for long: the runner has no cleanup for jobs whose only containers are those
    // of steps.
    if let Err(error) = sweep(&engine.disk, &engine.trash(), None, Duration::ZERO) {
        log.warning(&chain(&error));
    }
    // Before anything is made, which could be removed as something that a killed build left.
    let lock = FileLock::shared(&engine.disk.join(LOCK), BRIEF)?;
    make_private(&temporary)?;
    let unique = crate::sys::fs::random_u64();
    let context = own.join(format!("{CONTEXT_PREFIX}{unique:016x}"));
    let home = own.join(format!("{CONTEXT_PREFIX}{unique:016x}-home"));
    let name = format!("{LAYOUT}{unique:016x}");
    let layout = storage.join(&name);
    let trash = engine.trash();
    let mut undo = Rollback::new();
    undo.push(|| drop(trash.remove(&context)));
    make_private(&context)?;
    let ids = ConfinedIds::of(engine.privilege);
    let target = Target { dir: &context, owner: ids.owner() };
    let digest = take(&backend.context.runner.files, dockerfile, &target, LIMITS)?;
    let file_name = dockerfile.file_name().unwrap_or_default();
    let reference = reference(uid, file_name, &digest);
    if let Some(image) = engine.store.hold(&reference, &Platform::host())? {
        log.line(&format!("{} has not changed since it was built", dockerfile.display()));
        return Ok(image);
    }
    let program = find(&[options.program.as_os_str()], Some(DEFAULT_PATH.as_ref()), None)
        .map_err(BuildError::NoBuildah)?;
    undo.push(|| drop(trash.remove(&layout)));
    undo.push(|| drop(trash.remove(&home)));
    make_private(&home)?;
    let images = images_of(&context, file_name);
    configure(&home, ids.owner(), backend.registries, &images)?;

    let buildah = Buildah {
        program,
        ids,
        privilege: engine.privilege,
        resolvers: resolvers(backend)?,
        options,
        storage: &storage,
        temporary: &temporary,
        context: &context,
        home: &home,
        lock: &lock,
    };
    if !ids.are_its_own() {
        log.warning(
            "this user has no subordinate ids: what a Dockerfile runs is the runner's user, from whom only \
             directories are hidden, and files cannot be given to other users",
        );
    }
    log.group(&format!("Build {}", dockerfile.display()));
    let tag = reference.to_string();
    let policy = backend.settings.pull;
    let built = pull::pull(&buildah, backend.registries, credentials, policy, &images)
        .and_then(|()| buildah.build(&tag, file_name))
        .and_then(|()| buildah.push(&tag, &name));
    log.end_group();
    built?;
    Ok(engine.store.import(&layout, &reference)?)
}

/// Returns who knows names in the network of the job, which what a Dockerfile runs is in unless that is the
/// host's.
fn resolvers(backend: &EngineBackend<'_>) -> Result<Vec<String>, PathError> {
    if !backend.network.privilege.has_own_network() {
        return Ok(Vec::new());
    }
    let job = backend.jobs().read(&backend.context.runner.owner()).ok().flatten();
    let network = job.and_then(|job| Network::open(backend.network, &job.network).ok());
    let mut dns = Dns::default();
    dns.servers.clone_from(&backend.settings.dns);
    dns.fallback = network.and_then(|network| network.resolver());
    bundle::resolvers(&dns)
}

/// What was removed of builds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemovedBuilds {
    /// All that buildah keeps for a user, of how many users.
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

    /// Removes what killed builds of a user left. buildah keeps the containers that it built in, and the
    /// kernel what was written half: of that nobody but buildah can tell what is whole, so all of it goes.
    fn remove_killed(&mut self, own: &Path, trash: &Trash) -> Result<(), PathError> {
        let storage = own.join("storage");
        // Each build has one for as long as anything else of it is there.
        let contexts = named(own, |name| name.starts_with(CONTEXT_PREFIX))?;
        if contexts.is_empty() {
            return self.remove(&storage.join("tmp"), trash);
        }
        self.remove(&storage, trash)?;
        contexts.iter().try_for_each(|path| self.remove(path, trash))
    }
}

/// Removes what killed builds left, and all that buildah keeps for a user whose last build was so long
/// ago. Nothing while a build is going on.
pub fn remove_builds(
    disk: &Path,
    trash: &Trash,
    unused_for: Option<Duration>,
) -> Result<RemovedBuilds, BuildError> {
    sweep(disk, trash, unused_for, DYING)
}

/// Removes what builds of a job left, with all that buildah keeps if that is the job's alone: its files
/// belong to users that are known to nobody after the job of an ordinary user.
pub(super) fn remove_of_job(engine: &Engine) -> Result<(), BuildError> {
    let unused_for = engine.privilege.has_own_users().then_some(Duration::ZERO);
    remove_builds(&engine.disk, &engine.trash(), unused_for).map(drop)
}

/// Removes the same, and waits so long for a build that was killed, or that is going on.
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
        let is_of_user = entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        // Earlier versions had one storage for all users here, which nothing uses any more.
        if !is_of_user || unused_for.is_some_and(|limit| age(&path).is_ok_and(|age| age >= limit)) {
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
        for name in
            ["storage/layout-1/blobs", "storage/root/overlay", "storage/tmp/x", "context-1/a"]
        {
            fs::create_dir_all(all.join("1000").join(name)).unwrap();
        }
        let build = FileLock::shared(&dir.path().join(LOCK), BRIEF).unwrap();
        assert_eq!(remove(dir.path(), now).caches, 0);
        assert_eq!(names("1000").len(), 2);
        drop(build);
        assert_eq!(remove(dir.path(), None).caches, 0);
        assert!(names("1000").is_empty(), "one was killed");
        fs::create_dir_all(all.join("1000/storage/root")).unwrap();
        fs::write(all.join("1000/storage/root/file"), vec![1; 1 << 20]).unwrap();
        fs::create_dir_all(all.join("1000/storage/tmp")).unwrap();
        for age in [None, hour] {
            assert_eq!(remove(dir.path(), age).caches, 0);
            assert_eq!(names("1000"), ["storage"]);
            assert_eq!(names("1000/storage"), ["root"]);
        }
        let removed = remove(dir.path(), now);
        assert_eq!(removed.caches, 1);
        assert!((1 << 20..2 << 20).contains(&removed.freed_bytes), "{removed:?}");
        assert!(names("").is_empty());
    }

    #[test]
    fn what_earlier_versions_kept_for_all_users_goes() {
        let dir = tempfile::tempdir().unwrap();
        let all = dir.path().join(BUILDAH);
        for name in ["layout-1/blobs", "root/overlay", "run", "tmp/x", "0/storage/root"] {
            fs::create_dir_all(all.join(name)).unwrap();
        }
        assert!(remove(dir.path(), None).caches > 0);
        assert_eq!(fs::read_dir(&all).unwrap().count(), 1);
        assert!(all.join("0/storage/root").is_dir());
        assert_eq!(remove(dir.path(), None).caches, 0);
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
