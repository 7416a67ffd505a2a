//! Builds Dockerfile actions with buildah, which needs no daemon, in a container, and imports the images.

mod bases;
mod container;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use bases::{BaseImages, LayerMount};
pub use container::DependentStep;
use container_hook_job::BuildCacheScope;
use container_hook_job::dockerfile::{
    ContextError, HereDocument, LIMITS, RegistryConfigError, SnapshotTarget, allow_all_images,
    configure, images_of, take,
};
use container_hook_job::runner::CallingRunner;
use oci_hooks_engine::bundle::{BundleError, volume_users};
use oci_hooks_engine::container::{Engine, HostSystem};
use oci_hooks_files::error::chain;
use oci_hooks_files::find::{DEFAULT_PATH, FindError, find};
use oci_hooks_files::fs::{PathContext as _, PathError, make_private, random_u64};
use oci_hooks_files::lock::{FileLock, LOCK_TIMEOUT};
use oci_hooks_host::trash::Trash;
use oci_hooks_host::usage::disk_bytes;
use oci_hooks_image::{
    Credentials, Digest, HashAlgorithm, Hasher, Image, ImageReference, ImportError, Platform,
    StoreError,
};

use super::backend::EngineBackend;

/// Directory with the files of each build.
const BUILDAH: &str = "buildah";
/// Lock file that all builds share.
const LOCK: &str = "buildah.lock";

/// Time to wait for builds of other processes before removing leftovers.
const PATIENCE: Duration = Duration::from_millis(500);

/// Name prefix of a build's directory.
const SCRATCH_PREFIX: &str = "build-";
/// Name prefix of directories that are renamed for removal.
const TAKEN_PREFIX: &str = "removed-";

/// Repository of built images, which workflows cannot name.
const NAME: &str = "localhost/dockerfile-action";

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
    #[error("a Dockerfile action needs a user namespace, but the network of its build has none")]
    NoUserNamespace,
    /// The container's runtime cannot run the build, and another one would confine it less.
    #[error(
        "the runtime {} cannot build a Dockerfile action, because it cannot join a user namespace: use an action with a published image",
        .0.display()
    )]
    Runtime(PathBuf),
    /// The built image cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The registry configuration cannot be written.
    #[error(transparent)]
    Configure(#[from] RegistryConfigError),
    /// The store cannot be searched for an earlier build.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The containers that use the store of a build cannot be read.
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
    bases: BaseImages,
    /// Layers to mount in the store of base images.
    layers: Vec<LayerMount>,
    scratch: BuildScratch,
    /// Prevents the removal of the build's directory.
    _lock: FileLock,
}

/// The directory of a build, removed on drop.
struct BuildScratch {
    path: PathBuf,
    trash: Trash,
}

impl BuildScratch {
    /// Read-only input of a build: the context, the home directory, and the store of base images.
    const INPUT: &str = "input";
    /// Build context, in the input.
    const CONTEXT: &str = "context";
    /// Home directory of buildah, in the input.
    const HOME: &str = "home";
    /// Store of base images, in the input.
    const IMAGES: &str = "images";
    /// Output of a build: the image, as an OCI layout.
    const LAYOUT: &str = "layout";
    /// buildah's store, which commands of the Dockerfile can change.
    const STORE: &str = "store";
    /// Temporary files of buildah.
    const TEMPORARY: &str = "tmp";

    fn make(all: &Path, trash: Trash) -> Result<Self, PathError> {
        let unique = random_u64();
        let path = all.join(format!("{SCRATCH_PREFIX}{unique:016x}"));
        let scratch = BuildScratch { path, trash };
        make_private(&scratch.path)?;
        for name in [BuildScratch::CONTEXT, BuildScratch::HOME, BuildScratch::IMAGES] {
            make_private(&scratch.input_path(name))?;
        }
        for name in [BuildScratch::LAYOUT, BuildScratch::TEMPORARY] {
            make_private(&scratch.path.join(name))?;
        }
        Ok(scratch)
    }

    fn input_path(&self, name: &str) -> PathBuf {
        self.path.join(BuildScratch::INPUT).join(name)
    }
}

impl Drop for BuildScratch {
    fn drop(&mut self) {
        // If this fails, a later call finds the directory by its name.
        let _ = self.trash.remove(&self.path);
    }
}

/// Prepares the build of a Dockerfile with its directory as context; returns the image if the same content has been
/// built before for the same user and [`BuildCacheScope`].
pub fn begin(
    backend: &EngineBackend<'_>,
    dockerfile: &Path,
    credentials: &Credentials,
) -> Result<ImageOrBuild, BuildError> {
    let (engine, log) = (backend.engine, backend.context.log);
    make_private(&engine.disk)?;
    // Leftovers are removed here, too: the runner calls no `cleanup_job` for jobs with only container steps.
    let trash = engine.trash();
    let taken = RenamedBuilds::of(&engine.disk, &trash, Duration::ZERO);
    if let Err(error) = taken.and_then(|taken| taken.remove(&trash)) {
        log.warning(&chain(&error));
    }
    // Taken before the directory is created, which another call could otherwise remove as a leftover.
    let lock = FileLock::acquire_shared(&engine.disk.join(LOCK), LOCK_TIMEOUT)?;
    let scratch = BuildScratch::make(&engine.disk.join(BUILDAH), engine.trash())?;
    let context = scratch.input_path(BuildScratch::CONTEXT);
    let target = SnapshotTarget { dir: &context, owner: OWNER };
    let digest = take(&backend.context.runner.files, dockerfile, &target, LIMITS)?;
    let file_name = dockerfile.file_name().unwrap_or_default();
    let options = &backend.settings.build;
    let reference = reference(backend.context.runner, options.cache, file_name, &digest);
    if let Some(image) = engine.store.hold(&reference, &Platform::host())? {
        log.line(&format!(
            "{} has not changed since it was built: the built image is used",
            dockerfile.display()
        ));
        return Ok(ImageOrBuild::Image(Box::new(image)));
    }
    let program = find(&[options.buildah.as_os_str()], Some(DEFAULT_PATH.as_ref()), None)
        .map_err(BuildError::NoBuildah)?;
    let images = images_of(&context, file_name);
    let home = scratch.input_path(BuildScratch::HOME);
    configure(&home, OWNER, backend.registries, &images)?;
    allow_all_images(&home, OWNER)?;
    let bases = BaseImages::pull(backend, credentials, &images);
    let layers = bases.write_store(&scratch.input_path(BuildScratch::IMAGES), engine.privilege)?;
    bases.write_blobs(&scratch.path.join(BuildScratch::LAYOUT))?;
    Ok(ImageOrBuild::Dockerfile(Box::new(PreparedBuild {
        dockerfile: dockerfile.to_owned(),
        // Lossless: the name comes from the JSON of the request.
        file_name: file_name.to_string_lossy().into_owned(),
        here_document: HereDocument::find_first(&context, file_name),
        reference,
        program,
        bases,
        layers,
        scratch,
        _lock: lock,
    })))
}

/// Returns whether a name is reserved for images that this program makes.
pub fn is_reserved(name: &ImageReference) -> bool {
    let reserved = [NAME.parse().expect("it is a name"), HostSystem::reference()];
    let place = |name: &ImageReference| (name.registry().to_owned(), name.repository().to_owned());
    reserved.iter().any(|reserved| place(reserved) == place(name))
}

/// Directories of killed builds, renamed so that they can be removed after the lock is released: a build may
/// have created millions of files. If this call is killed, the next one takes them.
#[derive(Default)]
struct RenamedBuilds {
    paths: Vec<PathBuf>,
    freed_bytes: u64,
    failed: Option<BuildError>,
}

impl RenamedBuilds {
    /// Takes leftovers of killed builds, or none if other builds still run after `patience`.
    fn of(disk: &Path, trash: &Trash, patience: Duration) -> Result<Self, BuildError> {
        let all = disk.join(BUILDAH);
        let mut taken = Self::default();
        if !all.exists() {
            return Ok(taken);
        }
        let lock = FileLock::try_exclusive_for(&disk.join(LOCK), patience)?;
        let Some(_lock) = lock else { return Ok(taken) };
        taken.paths = find_entries(&all, TAKEN_PREFIX)?;
        for path in find_entries(&all, SCRATCH_PREFIX)? {
            if let Err(error) = taken.take(&path, trash) {
                taken.failed.get_or_insert(error);
            }
        }
        Ok(taken)
    }

    /// Takes the directory of a killed build, unless its container still runs.
    fn take(&mut self, path: &Path, trash: &Trash) -> Result<(), BuildError> {
        let store = path.join(BuildScratch::STORE);
        if store.exists() && !volume_users(&store)?.0.is_empty() {
            return Ok(());
        }
        let taken = path.with_file_name(format!("{TAKEN_PREFIX}{:016x}", random_u64()));
        match fs::rename(path, &taken) {
            Ok(()) => self.paths.push(taken),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The directory may be a mount point.
            Err(_) => self.remove_path(path, trash)?,
        }
        Ok(())
    }

    fn remove_path(&mut self, path: &Path, trash: &Trash) -> Result<(), PathError> {
        // `disk_bytes` fails for files, and for directories removed meanwhile.
        let bytes = disk_bytes(path).unwrap_or_default();
        trash.remove(path)?;
        self.freed_bytes += bytes;
        Ok(())
    }

    fn remove(mut self, trash: &Trash) -> Result<u64, BuildError> {
        let mut outcome = self.failed.take().map_or(Ok(()), Err);
        for path in std::mem::take(&mut self.paths) {
            outcome = outcome.and(self.remove_path(&path, trash).map_err(BuildError::from));
        }
        outcome.map(|()| self.freed_bytes)
    }
}

/// Removes leftovers of killed builds, unless a build runs. Returns the approximate number of freed bytes.
pub fn remove_builds(disk: &Path, trash: &Trash) -> Result<u64, BuildError> {
    RenamedBuilds::of(disk, trash, PATIENCE)?.remove(trash)
}

/// Removes leftovers of a job's builds.
pub fn remove_of_job(engine: &Engine) -> Result<(), BuildError> {
    remove_builds(&engine.disk, &engine.trash()).map(drop)
}

/// Returns the entries of a directory whose names have a prefix.
fn find_entries(dir: &Path, prefix: &str) -> Result<Vec<PathBuf>, PathError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).with_path("list", dir)? {
        let entry = entry.with_path("list", dir)?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
            paths.push(entry.path());
        }
    }
    Ok(paths)
}

/// Returns the image name for a Dockerfile and its context: the same content gets the same name in jobs that
/// share a cache.
fn reference(
    runner: &CallingRunner,
    cache: BuildCacheScope,
    dockerfile: &OsStr,
    context: &Digest,
) -> ImageReference {
    let mut hasher = Hasher::new(HashAlgorithm::Sha256);
    let mut add = |field: &[u8]| {
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field);
    };
    // A context may have files that only the runner's user can read.
    let (uid, _) = runner.user;
    add(&uid.to_le_bytes());
    for field in cache.sharers(runner) {
        add(field.as_bytes());
    }
    add(context.hex().as_bytes());
    add(dockerfile.as_bytes());
    format!("{NAME}:{}", &hasher.finish().hex()[..32])
        .parse()
        .expect("hexadecimal digits are a tag")
}

#[cfg(test)]
mod tests {
    use container_hook_job::testing::runner;

    use super::*;

    #[test]
    fn leftovers_of_builds_are_removed_unless_they_are_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, all) = (dir.path(), dir.path().join(BUILDAH));
        let trash = Trash::of(disk);
        let names = || {
            let entries = fs::read_dir(&all).unwrap().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        let remove = || remove_builds(disk, &trash).unwrap();
        assert_eq!(remove(), 0);
        let (one, two) = (all.join("build-1"), all.join("build-2"));
        fs::create_dir_all(one.join("store/root/overlay")).unwrap();
        fs::write(one.join("store/file"), vec![1; 1 << 20]).unwrap();
        let build = FileLock::acquire_shared(&disk.join(LOCK), LOCK_TIMEOUT).unwrap();
        assert_eq!(remove(), 0);
        drop(build);
        // The container of a killed build still runs.
        let users = one.join(".store.users");
        fs::write(&users, serde_json::to_vec(&[disk]).unwrap()).unwrap();
        assert_eq!(remove(), 0);
        assert_eq!(names(), ["build-1"]);
        fs::remove_file(users).unwrap();
        assert!((1 << 20..2 << 20).contains(&remove()));
        assert!(names().is_empty());
        // Other builds need not wait for the removal, and the call may be killed.
        fs::create_dir(&two).unwrap();
        let taken = RenamedBuilds::of(disk, &trash, Duration::ZERO).unwrap();
        drop(FileLock::try_exclusive(&disk.join(LOCK)).unwrap().expect("it is free"));
        drop(taken);
        assert!(!two.exists());
        assert_eq!(names().len(), 1);
        remove();
        assert!(names().is_empty());
    }

    #[test]
    fn images_are_shared_by_jobs_of_the_cache() {
        let main: CallingRunner = {
            let mut runner = runner();
            let job = [
                ("GITHUB_SERVER_URL", "https://github.com"),
                ("GITHUB_REPOSITORY", "octo/repo"),
                ("GITHUB_REF", "refs/heads/main"),
                ("GITHUB_RUN_ID", "1"),
                ("GITHUB_RUN_ATTEMPT", "1"),
                ("GITHUB_JOB", "build"),
            ];
            runner.job = job.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            runner
        };
        let with = |name: &str, value: &str| {
            let mut runner = main.clone();
            runner.job.insert(name.to_owned(), value.to_owned());
            runner
        };
        let name = |runner: &CallingRunner, cache, file: &str, content: &str| {
            reference(runner, cache, file.as_ref(), &Digest::of(content.as_bytes())).to_string()
        };
        let next = with("GITHUB_RUN_ID", "2");
        let pull_request = with("GITHUB_REF", "refs/pull/1/merge");
        let other = with("GITHUB_REPOSITORY", "octo/other");
        for (cache, runner, is_shared) in [
            (BuildCacheScope::Repository, &next, true),
            (BuildCacheScope::Repository, &pull_request, true),
            (BuildCacheScope::Repository, &other, false),
            (BuildCacheScope::Repository, &with("GITHUB_SERVER_URL", "https://example.com"), false),
            (
                BuildCacheScope::Repository,
                &CallingRunner { user: (1001, 0), ..main.clone() },
                false,
            ),
            (BuildCacheScope::Ref, &next, true),
            (BuildCacheScope::Ref, &pull_request, false),
            (BuildCacheScope::Ref, &other, false),
            (BuildCacheScope::Job, &main, true),
            (BuildCacheScope::Job, &next, false),
            (BuildCacheScope::Job, &with("GITHUB_JOB", "test"), false),
            (BuildCacheScope::Job, &with("GITHUB_RUN_ATTEMPT", "2"), false),
        ] {
            let found = name(runner, cache, "Dockerfile", "a");
            assert_eq!(found == name(&main, cache, "Dockerfile", "a"), is_shared, "{cache:?}");
            assert_ne!(found, name(runner, cache, "Dockerfile.ci", "a"));
            assert_ne!(found, name(runner, cache, "Dockerfile", "b"));
        }
        // Without a repository only the job is known, or nothing.
        let without = |names: &[&str]| {
            let mut runner = main.clone();
            runner.job.retain(|name, _| !names.contains(&name.as_str()));
            name(&runner, BuildCacheScope::Repository, "Dockerfile", "a")
        };
        assert_eq!(
            without(&["GITHUB_REPOSITORY"]),
            name(&main, BuildCacheScope::Job, "Dockerfile", "a")
        );
        let unknown = ["GITHUB_REPOSITORY", "GITHUB_RUN_ID"];
        assert_ne!(without(&unknown), without(&unknown));
    }

    #[test]
    fn names_of_own_images_are_reserved() {
        let is_reserved = |name: &str| is_reserved(&name.parse().unwrap());
        for name in [
            "localhost/dockerfile-action",
            "localhost/dockerfile-action:0123456789abcdef",
            "localhost/host-system:latest",
        ] {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["localhost/ci", "dockerfile-action", "localhost:5000/dockerfile-action"] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
