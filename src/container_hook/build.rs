//! Dockerfile actions: built by buildah, which needs no daemon, and imported into the store.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::log::Log;
use crate::container::make_private;
use crate::image::{Algorithm, Hasher, Image, ImportError, Platform, Reference, Store, StoreError};
use crate::runtime::{DEFAULT_PATH, FindError, find};
use crate::sys::confine::Confinement;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::lock::FileLock;
use crate::sys::rollback::Rollback;
use crate::sys::spawn;

/// How images are built.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// buildah, as a path or a name.
    pub program: PathBuf,
    /// Options for every call, as `--storage-driver=vfs`.
    pub options: Vec<String>,
    /// Variables it gets besides `PATH` and `HOME`, as proxies.
    pub env: Vec<(String, String)>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions { program: PathBuf::from("buildah"), options: Vec::new(), env: Vec::new() }
    }
}

/// buildah's own directory on the disk, and the lock that each build shares.
const BUILDAH: &str = "buildah";
const LOCK: &str = "buildah.lock";

/// What the names of results in it begin with.
const LAYOUT: &str = "layout-";

/// Where buildah sees its own directory and that of the Dockerfile.
const STORAGE: &str = "/tmp/storage";
const CONTEXT: &str = "/tmp/context";

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
    /// The Dockerfile or its directory cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    /// buildah says no.
    #[error("buildah {action} ended with {status}; what it says is above")]
    Failed {
        /// `build` or `push`.
        action: &'static str,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// What it built cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// The store cannot say whether it was built before.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Builds a Dockerfile with its directory as context, unless the same has been built before.
pub(super) fn build(
    store: &Store,
    disk: &Path,
    dockerfile: &Path,
    options: &BuildOptions,
    log: &dyn Log,
) -> Result<Image, BuildError> {
    let context = dockerfile.parent().unwrap_or(Path::new("/"));
    let reference = reference(dockerfile, context)?;
    if let Some(image) = store.hold(&reference, &Platform::host())? {
        log.line(&format!("{} has not changed since it was built", dockerfile.display()));
        return Ok(image);
    }
    let name = options.program.as_os_str();
    let program =
        find(&[name], Some(DEFAULT_PATH.as_ref()), None).map_err(BuildError::NoBuildah)?;
    let storage = disk.join(BUILDAH);
    let name = format!("{LAYOUT}{:016x}", crate::sys::fs::unpredictable());
    let layout = storage.join(&name);
    let temporary = storage.join("tmp");
    make_private(&temporary)?;
    let _lock = FileLock::shared(&disk.join(LOCK))?;
    let mut undo = Rollback::new();
    undo.push(|| drop(fs::remove_dir_all(&layout)));

    let (inside, shown) = (Path::new(STORAGE), Path::new(CONTEXT));
    let file = shown.join(dockerfile.file_name().unwrap_or_default());
    let buildah = |action: &'static str, arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new(&program);
        command.arg("--root").arg(inside.join("root")).arg("--runroot").arg(inside.join("run"));
        command.args(&options.options).args(arguments);
        command.env_clear().env("PATH", DEFAULT_PATH).env("HOME", inside);
        command.envs(options.env.iter().map(|(name, value)| (name, value)));
        command.current_dir("/").stdin(Stdio::null());
        // What a Dockerfile asks for may be the host's root directory (CVE-2024-1753), and its steps
        // have few walls around them: with this they are nobody's on the host.
        let mut confinement = Confinement::new().at("make a user namespace for", &program)?;
        confinement.give(&storage, STORAGE)?;
        confinement.give(&temporary, "/var/tmp")?;
        confinement.show(context, CONTEXT)?;
        confinement.apply(&mut command);
        spawn::die_with_us(&mut command);
        let status = command.status().at("execute", &program)?;
        if status.success() { Ok(()) } else { Err(BuildError::Failed { action, status }) }
    };
    log.group(&format!("Build {}", dockerfile.display()));
    let tag = reference.to_string();
    let built = buildah(
        "build",
        &[
            "bud".as_ref(),
            "--isolation".as_ref(),
            "chroot".as_ref(),
            "--format".as_ref(),
            "docker".as_ref(),
            "--layers".as_ref(),
            "--tag".as_ref(),
            tag.as_ref(),
            "--file".as_ref(),
            file.as_os_str(),
            shown.as_os_str(),
        ],
    )
    .and_then(|()| {
        let mut target = std::ffi::OsString::from("oci:");
        target.push(inside.join(&name));
        buildah(
            "push",
            &[
                "push".as_ref(),
                "--quiet".as_ref(),
                "--disable-compression".as_ref(),
                tag.as_ref(),
                target.as_os_str(),
            ],
        )
    });
    log.end_group();
    built?;
    Ok(store.import(&layout, &reference)?)
}

/// Removes what killed builds left, and all that buildah keeps if the last build was so long ago.
/// Nothing while one is going on. Returns whether it was all.
pub fn remove_builds(disk: &Path, unused_for: Option<Duration>) -> Result<bool, BuildError> {
    let storage = disk.join(BUILDAH);
    if !storage.exists() {
        return Ok(false);
    }
    let Some(_lock) = FileLock::try_exclusive(&disk.join(LOCK))? else { return Ok(false) };
    // Each build makes and removes a directory there.
    let used = storage.metadata().and_then(|metadata| metadata.modified()).at("read", &storage)?;
    let age = used.elapsed().unwrap_or_default();
    if unused_for.is_some_and(|limit| age >= limit) {
        fs::remove_dir_all(&storage).at("remove", &storage)?;
        return Ok(true);
    }
    for entry in fs::read_dir(&storage).at("list", &storage)?.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        if name == "tmp" || name.to_string_lossy().starts_with(LAYOUT) {
            fs::remove_dir_all(&path).at("remove", &path)?;
        }
    }
    Ok(false)
}

/// Returns the name of what a Dockerfile and its context make: the same content, the same name.
fn reference(dockerfile: &Path, context: &Path) -> Result<Reference, PathError> {
    let mut hasher = Hasher::new(Algorithm::Sha256);
    hash_file(dockerfile, &mut hasher)?;
    hash_tree(context, Path::new(""), &mut hasher)?;
    let digest = hasher.finish();
    let text = format!("localhost/dockerfile-action:{}", &digest.hex()[..32]);
    Ok(text.parse().expect("hexadecimal digits are a tag"))
}

fn hash_tree(root: &Path, relative: &Path, hasher: &mut Hasher) -> Result<(), PathError> {
    let dir = root.join(relative);
    let entries = fs::read_dir(&dir).at("list", &dir)?;
    let mut names: Vec<_> =
        entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>().at("list", &dir)?;
    names.sort();
    for name in names {
        // The repository of the action itself; no build can depend on it.
        if relative.as_os_str().is_empty() && name == ".git" {
            continue;
        }
        let relative = relative.join(name);
        let path = root.join(&relative);
        let metadata = fs::symlink_metadata(&path).at("read", &path)?;
        let kind = metadata.file_type();
        hasher.update(relative.as_os_str().as_bytes());
        hasher.update(&[0]);
        hasher.update(&metadata.permissions().mode().to_le_bytes());
        if kind.is_dir() {
            hash_tree(root, &relative, hasher)?;
        } else if kind.is_symlink() {
            hasher.update(fs::read_link(&path).at("read", &path)?.as_os_str().as_bytes());
        } else if kind.is_file() {
            hasher.update(&metadata.len().to_le_bytes());
            hash_file(&path, hasher)?;
        }
    }
    Ok(())
}

fn hash_file(path: &Path, hasher: &mut Hasher) -> Result<(), PathError> {
    let mut file = File::open(path).at("open", path)?;
    let mut buffer = vec![0; 128 << 10];
    loop {
        match file.read(&mut buffer).at("read", path)? {
            0 => return Ok(()),
            count => hasher.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_removed_by_age_but_not_while_one_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let names = || {
            let entries = fs::read_dir(dir.path().join(BUILDAH)).into_iter().flatten().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        assert!(!remove_builds(dir.path(), Some(Duration::ZERO)).unwrap());
        for name in ["layout-1/blobs", "root/overlay", "tmp/x"] {
            fs::create_dir_all(dir.path().join(BUILDAH).join(name)).unwrap();
        }
        let build = FileLock::shared(&dir.path().join(LOCK)).unwrap();
        assert!(!remove_builds(dir.path(), Some(Duration::ZERO)).unwrap());
        assert_eq!(names().len(), 3);
        drop(build);
        for age in [None, Some(Duration::from_secs(3600))] {
            assert!(!remove_builds(dir.path(), age).unwrap());
            assert_eq!(names(), ["root"]);
        }
        assert!(remove_builds(dir.path(), Some(Duration::ZERO)).unwrap());
        assert!(names().is_empty());
    }

    #[test]
    fn what_is_built_has_the_name_of_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let dockerfile = dir.path().join("Dockerfile");
        fs::write(&dockerfile, "FROM scratch\n").unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        let name = || reference(&dockerfile, dir.path()).unwrap().to_string();
        let first = name();
        assert_eq!(first, name());
        fs::create_dir(dir.path().join(".git")).unwrap();
        assert_eq!(first, name());
        fs::write(dir.path().join("src/a"), "1").unwrap();
        let second = name();
        assert_ne!(first, second);
        fs::set_permissions(dir.path().join("src/a"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(second, name());
    }
}
