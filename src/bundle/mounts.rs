//! Mounts: the runtime's own, the engine's files, and what was asked for.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::Mount as Entry;

use super::devices::Node;
use super::mount_context::MountContext;
use super::options::{Mount, MountSource, Namespace, Options, Tmpfs};
use super::rootfs_dir::{RootfsDir, normal};
use super::sources::Source;
use super::stage::{Place, Stage};
use super::{BundleError, Init, files};
use crate::image::ImageConfig;
use crate::sys::fs::{PathContext, PathError};
use crate::sys::host_file::HostFile;
use crate::sys::mount;

/// Where versions before 0.2 made the mounts of a bundle.
const MOUNTS: &str = "mounts";

/// What Docker lets `/dev/shm` hold.
pub const DEFAULT_SHM_BYTES: u64 = 64 << 20;

/// Takes away what a version before 0.2 mounted in a bundle; nothing if that is done already.
///
/// Before that such a bundle must not be removed: files of the host are in it.
pub fn unmount(dir: &Path) -> Result<(), PathError> {
    let mounts = dir.join(MOUNTS);
    let entries = match fs::read_dir(&mounts) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.at("list", &mounts)?,
    };
    for entry in entries {
        let entry = entry.at("list", &mounts)?;
        let path = entry.path();
        mount::unmount(&path)?;
        // Not what is in it: were it still mounted, that would be the host's.
        let removed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir(&path),
            _ => fs::remove_file(&path),
        };
        removed.at("remove", &path)?;
    }
    fs::remove_dir(&mounts).at("remove", &mounts)
}

/// `mounts` of the configuration, and what came up while they were prepared.
#[derive(Debug)]
pub(super) struct Mounts {
    pub(super) entries: Vec<Entry>,
    pub(super) propagation: Option<&'static str>,
    /// What the entries name, for the runtime alone.
    pub(super) stage: Stage,
}

/// A mount, and where it is once the links of the image are followed.
struct Placed<'a> {
    target: PathBuf,
    what: What<'a>,
}

enum What<'a> {
    Asked(Mount),
    /// A file of the engine's own, which root of the container may write to.
    File(HostFile),
    /// A program of the engine's own.
    Program(HostFile),
    Node(&'a Node),
}

/// Prepares the mounts of a container: opens what is mounted, and puts together what is mounted into
/// something that others can change meanwhile.
pub(super) fn prepare(container: MountContext<'_>) -> Result<Mounts, BundleError> {
    let MountContext { image, options, inside, .. } = container;
    let mut wanted = options.mounts.clone();
    for mount in &mut wanted {
        mount.target = checked_target(&mount.target)?;
    }
    wanted.extend(image_volumes(image, options, &wanted)?);
    let mut placed = Vec::new();
    for mount in wanted {
        let target = real_target(inside, &mount)?;
        if placed.iter().any(|other: &Placed<'_>| other.target == target) {
            return Err(BundleError::DuplicateMount { path: target });
        }
        placed.push(Placed { target, what: What::Asked(mount) });
    }
    let mut entries = own(options);
    let is_asked = |target: &Path| placed.iter().any(|placed| placed.target == target);
    entries.retain(|entry| !is_asked(entry.destination()));
    let engine = engine_mounts(container)?;
    let engine: Vec<_> = engine.into_iter().filter(|mount| !is_asked(&mount.target)).collect();
    placed.splice(0..0, engine);
    // A mount must not hide one below it; of others the order is kept.
    placed.sort_by_key(|placed| depth(&placed.target));

    let stage_root = options.stage.as_deref().or(container.rootfs.parent());
    let mut stage = Stage::new(stage_root.unwrap_or(container.rootfs), container.rootfs);
    let mut propagation = None;
    let targets: Vec<PathBuf> = placed.iter().map(|placed| placed.target.clone()).collect();
    let runtimes: Vec<PathBuf> = entries.iter().map(|entry| entry.destination().clone()).collect();
    for Placed { target, what } in placed {
        let is_above = |other: &PathBuf| *other != target && other.starts_with(&target);
        let is_below_runtimes = runtimes.iter().any(|other| target.starts_with(other));
        // What has others in it is put into the root file system by us, which runtimes take as a whole:
        // crun 1.8 copies a mount without those in it where there is a user namespace.
        let place = match (stage.is_above(&target), targets.iter().any(is_above)) {
            (true, _) => Place::Above,
            (false, true) if !is_below_runtimes => Place::Rootfs,
            (false, _) => Place::Own,
        };
        let source = match &what {
            What::Asked(Mount { source: MountSource::Tmpfs(tmpfs), read_only, .. }) => {
                let words = tmpfs_options(tmpfs, if *read_only { "ro" } else { "rw" });
                if place == Place::Own {
                    // Nobody has anything to do with it before the container runs.
                    entries.push(entry(text(&target)?, "tmpfs", "tmpfs", words));
                    continue;
                }
                Source::of_memory(container, words)?
            }
            What::Asked(mount) => Source::of_mount(container, mount, &target)?,
            What::File(file) => Source::of_file(file.clone(), &target, false),
            What::Program(file) => Source::of_program(file.clone(), &target)?,
            What::Node(node) => Source::of_node(container, node)?,
        };
        if propagation != Some("rshared") {
            propagation = source.root_propagation().or(propagation);
        }
        let (destination, words) = (text(&target)?.to_owned(), source.words()?);
        let path = stage.add(target, source, place);
        // All else comes along with what it is in.
        if place == Place::Own {
            entries.push(entry(&destination, "bind", text(&path)?, words));
        }
    }
    Ok(Mounts { entries, propagation, stage })
}

fn depth(path: &Path) -> usize {
    path.components().count()
}

/// Returns whether a directory of the container is in something mounted, which hides the image's.
pub(super) fn is_mounted(options: &Options, path: &Path) -> bool {
    options.mounts.iter().any(|mount| normal(path).starts_with(normal(&mount.target)))
}

fn checked_target(target: &Path) -> Result<PathBuf, BundleError> {
    let path = normal(target);
    if !target.is_absolute() || path == Path::new("/") {
        return Err(BundleError::MountTarget { path: target.to_owned() });
    }
    if path.starts_with("/proc") {
        return Err(BundleError::MountInProc { path: target.to_owned() });
    }
    Ok(path)
}

/// Checks where a mount ends up once the links of the image are followed, and returns it.
///
/// Runtimes take `/dev/null` of the container for what hides parts of `/proc`: what somebody else
/// filled must not take the place of `/dev` (CVE-2025-31133).
fn real_target(inside: &RootfsDir, mount: &Mount) -> Result<PathBuf, BundleError> {
    let target = &mount.target;
    let real = inside.real(target)?;
    if is_in_proc(&real) {
        return Err(BundleError::MountInProc { path: target.clone() });
    }
    if real == Path::new("/") {
        return Err(BundleError::MountTarget { path: target.clone() });
    }
    let dev = Path::new("/dev");
    let (is_harmless, source_name) = match &mount.source {
        MountSource::Tmpfs(_) => (true, String::new()),
        MountSource::Bind { file, .. } | MountSource::System { file } => {
            (file.has_name(dev), file.display().to_string())
        }
        MountSource::Trusted { path, .. } => {
            (fs::canonicalize(path).is_ok_and(|path| path == dev), path.display().to_string())
        }
        MountSource::Volume { .. } => (false, "a volume".to_owned()),
    };
    if real == dev && !is_harmless {
        return Err(BundleError::MountOnDevices { path: target.clone(), source_name });
    }
    Ok(real)
}

/// Returns volumes for the paths that the image declares and nothing is mounted on.
fn image_volumes(
    image: &ImageConfig,
    options: &Options,
    mounts: &[Mount],
) -> Result<Vec<Mount>, BundleError> {
    let Some(root) = &options.volume_root else { return Ok(Vec::new()) };
    let mut volumes: Vec<Mount> = Vec::new();
    for (at, path) in image.volumes.iter().enumerate() {
        let target = checked_target(Path::new(path))?;
        if mounts.iter().chain(&volumes).any(|mount| mount.target == target) {
            continue;
        }
        let path = root.join(at.to_string());
        let source = MountSource::Volume { path, copy: true, is_shared: false };
        volumes.push(Mount { target, source, subpath: None, read_only: false, id_mapping: None });
    }
    Ok(volumes)
}

/// Where POSIX shared memory is.
const SHM: &str = "/dev/shm";

/// Returns how large the host's `/dev/shm` is, if it has one.
pub fn host_shm_bytes() -> Option<u64> {
    let stat = rustix::fs::statvfs(SHM).ok()?;
    Some(stat.f_blocks.saturating_mul(stat.f_frsize)).filter(|bytes| *bytes > DEFAULT_SHM_BYTES)
}

/// The group of terminals, in all distributions.
const TTY: u32 = 5;

/// Returns what every container has mounted by the runtime itself.
fn own(options: &Options) -> Vec<Entry> {
    let access = if options.security.privileged { "rw" } else { "ro" };
    let shm_bytes = options.shm_size_bytes.unwrap_or(DEFAULT_SHM_BYTES);
    let shm = format!("size={shm_bytes}");
    let mut terminals = vec!["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"];
    if options.privilege.has_group(TTY) {
        terminals.push("gid=5");
    }
    let mut mounts = vec![
        entry("/proc", "proc", "proc", ["nosuid", "noexec", "nodev"]),
        entry("/dev", "tmpfs", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        entry("/dev/pts", "devpts", "devpts", terminals),
        entry("/sys", "sysfs", "sysfs", ["nosuid", "noexec", "nodev", access]),
        entry("/sys/fs/cgroup", "cgroup", "cgroup", ["nosuid", "noexec", "nodev", access]),
    ];
    // Shows the queues of whichever namespace the container is in; the host may not have it mounted.
    mounts.push(entry("/dev/mqueue", "mqueue", "mqueue", ["nosuid", "noexec", "nodev"]));
    // That of the host is a mount like others. A size of 0 would be no limit.
    if options.namespaces.ipc != Namespace::Host && shm_bytes > 0 {
        let flags = ["nosuid", "noexec", "nodev", "mode=1777", &shm];
        mounts.push(entry(SHM, "tmpfs", "shm", flags));
    }
    mounts
}

fn entry<O: Into<String>>(
    destination: &str,
    kind: &str,
    source: &str,
    options: impl IntoIterator<Item = O>,
) -> Entry {
    let mut entry = Entry::default();
    entry
        .set_destination(destination.into())
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(source.into()))
        .set_options(Some(options.into_iter().map(Into::into).collect()));
    entry
}

/// Returns the mounts of the files that the engine gives a container, and of its devices.
fn engine_mounts(container: MountContext<'_>) -> Result<Vec<Placed<'_>>, BundleError> {
    let MountContext { options, dir, .. } = container;
    let mut mounts = Vec::new();
    let mut file = |path: &Path, target: &str, what: fn(HostFile) -> What<'static>| {
        let what = what(HostFile::open_trusted(path)?);
        mounts.push(Placed { target: container.inside.real(Path::new(target))?, what });
        Ok::<_, BundleError>(())
    };
    if options.hosts.is_some() {
        file(&dir.join(files::HOSTS), "/etc/hosts", What::File)?;
    }
    if options.dns.is_some() {
        file(&dir.join(files::RESOLV_CONF), "/etc/resolv.conf", What::File)?;
    }
    if options.hostname.is_some() {
        file(&dir.join(files::HOSTNAME), "/etc/hostname", What::File)?;
    }
    if let Some(init) = &options.init {
        file(&init.program, Init::TARGET, What::Program)?;
    }
    if options.namespaces.ipc == Namespace::Host {
        file(Path::new(SHM), SHM, What::File)?;
    }
    let nodes = container.nodes.iter();
    mounts.extend(nodes.map(|node| Placed { target: node.path.clone(), what: What::Node(node) }));
    Ok(mounts)
}

/// Returns a path as config.json can have it.
pub(super) fn text(path: &Path) -> Result<&str, BundleError> {
    path.to_str().ok_or_else(|| BundleError::NotUtf8 { path: path.to_owned() })
}

fn tmpfs_options(tmpfs: &Tmpfs, access: &str) -> Vec<String> {
    let mut options: Vec<String> = ["noexec", "nosuid", "nodev"].map(str::to_owned).to_vec();
    for option in &tmpfs.options {
        // `exec` takes `noexec` away, and the other way round.
        let opposite = option.strip_prefix("no").map_or(format!("no{option}"), str::to_owned);
        options.retain(|known| *known != opposite && known != option);
        options.push(option.clone());
    }
    if let Some(size) = tmpfs.size_bytes {
        options.push(format!("size={size}"));
    }
    if let Some(mode) = tmpfs.mode {
        options.push(format!("mode={mode:o}"));
    } else if !options.iter().any(|option| option.starts_with("mode=")) {
        options.push("mode=1777".to_owned());
    }
    options.push(access.to_owned());
    options
}

/// Returns whether a path is `/proc` or in it.
pub(super) fn is_in_proc(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && components.next().is_some_and(|name| name.as_os_str() == "proc")
}

#[cfg(test)]
mod tests;
