//! Mounts: the runtime's own, the engine's files, and what was asked for.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, open};
use rustix::io::Errno;
use serde_json::{Value, json};

use super::inside::{Inside, normal};
use super::options::{Mount, MountSource, Namespace, Options, Ownership, Propagation, Tmpfs};
use super::user::User;
use super::{BundleError, Init, files};
use crate::image::ImageConfig;
use crate::sys::beneath::Beneath;
use crate::sys::fs::{PathContext, PathError};
use crate::sys::mount::{self, Depth};
use crate::sys::tree::{self, Purpose};
use crate::sys::userns::Mapping;

/// Where the mounts of a bundle are made.
const MOUNTS: &str = "mounts";

/// What Docker lets `/dev/shm` hold.
const DEFAULT_SHM_BYTES: u64 = 64 << 20;

/// Takes away what [`write`](super::write()) mounted in a bundle; nothing if that is done already.
///
/// Before that a bundle must not be removed: the files of the host are in it.
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
#[derive(Debug, Default)]
pub(super) struct Mounts {
    pub(super) entries: Vec<Value>,
    /// `linux.rootfsPropagation`.
    pub(super) propagation: Option<&'static str>,
    pub(super) warnings: Vec<String>,
}

/// Whose mounts are prepared, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Container<'a> {
    pub(super) image: &'a ImageConfig,
    pub(super) options: &'a Options,
    pub(super) inside: &'a Inside,
    pub(super) user: &'a User,
    /// The bundle.
    pub(super) dir: &'a Path,
}

/// Prepares the mounts of a container.
pub(super) fn prepare(container: Container<'_>) -> Result<Mounts, BundleError> {
    let Container { image, options, dir, .. } = container;
    let mut wanted = options.mounts.clone();
    for mount in &mut wanted {
        mount.target = checked_target(&mount.target)?;
    }
    wanted.extend(image_volumes(image, options, &wanted)?);
    let mut targets: Vec<&Path> = wanted.iter().map(|mount| &*mount.target).collect();
    targets.sort_unstable();
    if let Some(pair) = targets.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BundleError::DuplicateMount { path: pair[0].to_owned() });
    }
    for mount in &wanted {
        check_real_target(container.inside, mount, &wanted)?;
    }
    let is_free = |target: &Value| {
        let target = target["destination"].as_str().map(Path::new);
        !wanted.iter().any(|mount| Some(&*mount.target) == target)
    };
    let mut mounts = Mounts { entries: own(options), ..Mounts::default() };
    let mut later = engine_files(options, dir)?;
    mounts.entries.retain(is_free);
    later.retain(is_free);
    let mut preparation =
        Preparation { container, namespaces: Vec::new(), warnings: Vec::new(), propagation: None };
    for (at, mount) in wanted.iter().enumerate() {
        later.push(preparation.mount(at, mount)?);
    }
    mounts.propagation = preparation.propagation;
    mounts.warnings = preparation.warnings;
    // A mount must not hide one below it; of others the order is kept.
    later.sort_by_key(|mount| mount["destination"].as_str().map_or(0, depth));
    mounts.entries.append(&mut later);
    Ok(mounts)
}

fn depth(path: &str) -> usize {
    Path::new(path).components().count()
}

/// Tells if a directory of the container is in something mounted, where the image's says nothing.
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

/// Checks where a mount ends up once the runtime has followed the links of the image.
///
/// Runtimes take `/dev/null` of the container for what hides parts of `/proc`: what somebody else
/// filled must not take the place of `/dev` (CVE-2025-31133).
fn check_real_target(inside: &Inside, mount: &Mount, all: &[Mount]) -> Result<(), BundleError> {
    let target = &mount.target;
    let real = inside.real(target)?;
    if is_in_proc(&real) {
        return Err(BundleError::MountInProc { path: target.clone() });
    }
    let is_harmless = match &mount.source {
        MountSource::Tmpfs(_) => true,
        MountSource::Bind { path, .. } => {
            fs::canonicalize(path).is_ok_and(|path| path == Path::new(DEV))
        }
        MountSource::Volume { .. } => false,
    };
    if real == Path::new(DEV) && !is_harmless {
        let source_name = match &mount.source {
            MountSource::Bind { path, .. } => path.display().to_string(),
            _ => "a volume".to_owned(),
        };
        return Err(BundleError::MountOnDevices { path: target.clone(), source_name });
    }
    for other in all {
        let (MountSource::Bind { path, .. } | MountSource::Volume { path, .. }) = &other.source
        else {
            continue;
        };
        if let Ok(below) = target.strip_prefix(&other.target)
            && other.target != *target
            && has_link(path, below)
        {
            let above = other.target.clone();
            return Err(BundleError::MountThroughLink { path: target.clone(), above });
        }
    }
    Ok(())
}

const DEV: &str = "/dev";

/// Tells if a symbolic link is on a path below a directory.
fn has_link(directory: &Path, below: &Path) -> bool {
    let mut path = directory.to_owned();
    below.iter().any(|name| {
        path.push(name);
        path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
    })
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
        let source = MountSource::Volume { path: root.join(at.to_string()), copy: true };
        volumes.push(Mount { target, source, subpath: None, read_only: false, ownership: None });
    }
    Ok(volumes)
}

/// Returns what every container has mounted.
fn own(options: &Options) -> Vec<Value> {
    let access = if options.security.privileged { "rw" } else { "ro" };
    let shm_bytes = options.shm_size_bytes.unwrap_or(DEFAULT_SHM_BYTES);
    let shm = format!("size={shm_bytes}");
    let mount = |target: &str, kind: &str, source: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": source, "options": options});
    let mut mounts = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", access]),
        mount("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", access]),
    ];
    // Shows the queues of whichever namespace the container is in; the host may not have it mounted.
    mounts.push(mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]));
    if options.namespaces.ipc == Namespace::Host {
        let shm = "/dev/shm";
        mounts.push(mount(shm, "bind", shm, &["rbind", "nosuid", "noexec", "nodev"]));
    } else {
        // A size of 0 would be no limit.
        if shm_bytes > 0 {
            let flags = ["nosuid", "noexec", "nodev", "mode=1777", &shm];
            mounts.push(mount("/dev/shm", "tmpfs", "shm", &flags));
        }
    }
    mounts
}

/// Writes the files that the engine gives a container, and returns their mounts.
fn engine_files(options: &Options, dir: &Path) -> Result<Vec<Value>, BundleError> {
    let mut mounts = Vec::new();
    let mut bind = |source: &Path, target: &str, access: &str| {
        let flags = ["rbind", "rprivate", access];
        let source = text(source)?;
        mounts.push(
            json!({"destination": target, "type": "bind", "source": source, "options": flags}),
        );
        Ok::<_, BundleError>(())
    };
    if options.hosts.is_some() {
        bind(&dir.join(files::HOSTS), "/etc/hosts", "rw")?;
    }
    if options.dns.is_some() {
        bind(&dir.join(files::RESOLV_CONF), "/etc/resolv.conf", "rw")?;
    }
    if options.hostname.is_some() {
        bind(&dir.join(files::HOSTNAME), "/etc/hostname", "rw")?;
    }
    if let Some(init) = &options.init {
        bind(&init.program, Init::TARGET, "ro")?;
    }
    Ok(mounts)
}

/// Returns a path as config.json can have it.
pub(super) fn text(path: &Path) -> Result<&str, BundleError> {
    path.to_str().ok_or_else(|| BundleError::NotUtf8 { path: path.to_owned() })
}

struct Preparation<'a> {
    container: Container<'a>,
    /// Namespaces of the mappings that came up.
    namespaces: Vec<(Ownership, OwnedFd)>,
    propagation: Option<&'static str>,
    warnings: Vec<String>,
}

impl Preparation<'_> {
    /// Prepares one mount and returns its entry.
    fn mount(&mut self, at: usize, mount: &Mount) -> Result<Value, BundleError> {
        let access = if mount.read_only { "ro" } else { "rw" };
        let (source, flags) = match &mount.source {
            MountSource::Tmpfs(tmpfs) => {
                return Ok(json!({
                    "destination": text(&mount.target)?,
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": tmpfs_options(tmpfs, access),
                }));
            }
            MountSource::Bind { path, propagation, recursive } => {
                if !path.is_absolute() {
                    return Err(BundleError::RelativeSource { path: path.clone() });
                }
                match fs::metadata(path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        return Err(BundleError::NoSource { path: path.clone() });
                    }
                    metadata => metadata.at("look at", path)?,
                };
                let (bind, depth) =
                    if *recursive { ("rbind", Depth::Recursive) } else { ("bind", Depth::Single) };
                let source = self.owned(at, mount, path, depth)?;
                (source, [bind, self.propagation(*propagation), access])
            }
            MountSource::Volume { path, copy } => {
                let mut builder = DirBuilder::new();
                builder.recursive(true).mode(0o755).create(path).at("create", path)?;
                let source = self.owned(at, mount, path, Depth::Single)?;
                if *copy {
                    self.fill(&source, &mount.target)?;
                }
                (source, ["rbind", "rprivate", access])
            }
        };
        Ok(json!({
            "destination": text(&mount.target)?,
            "type": "bind",
            "source": text(&source)?,
            "options": flags,
        }))
    }

    /// Returns the source with the owners of its files as they are asked for.
    fn owned(
        &mut self,
        at: usize,
        mount: &Mount,
        source: &Path,
        depth: Depth,
    ) -> Result<PathBuf, BundleError> {
        let user = self.container.user;
        let is_other = |o: &Ownership| (o.host_uid, o.host_gid) != (user.uid, user.gid);
        let ownership = mount.ownership.filter(is_other);
        if ownership.is_none() && mount.subpath.is_none() {
            return Ok(source.to_owned());
        }
        let file = match &mount.subpath {
            Some(path) => beneath(source, path, mount.ownership)?,
            None => {
                open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).at("open", source)?
            }
        };
        let mounts = self.container.dir.join(MOUNTS);
        let target = mounts.join(at.to_string());
        DirBuilder::new().recursive(true).mode(0o700).create(&mounts).at("create", &mounts)?;
        let stat = fstat(&file).at("look at", source)?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            fs::create_dir(&target).at("create", &target)?;
        } else {
            File::create(&target).at("create", &target)?;
        }
        let named = (file.as_fd(), source);
        let Some(ownership) = ownership else {
            mount::bind_open(named, &target, None, depth)?;
            return Ok(target);
        };
        match self.mount_owned(ownership, named, &target, depth) {
            Ok(()) => Ok(target),
            Err(error) if is_unsupported(&error) => {
                self.warnings.push(format!(
                    "what user {} of the container makes in {} belongs to that user on the host too: \
                     its file system cannot map owners ({})",
                    user.uid,
                    mount.target.display(),
                    error.source
                ));
                if mount.subpath.is_none() {
                    return Ok(source.to_owned());
                }
                mount::bind_open(named, &target, None, depth)?;
                Ok(target)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn mount_owned(
        &mut self,
        ownership: Ownership,
        source: (BorrowedFd<'_>, &Path),
        target: &Path,
        depth: Depth,
    ) -> Result<(), PathError> {
        let known = self.namespaces.iter().position(|(known, _)| *known == ownership);
        let at = match known {
            Some(at) => at,
            None => {
                let user = self.container.user;
                let host = (ownership.host_uid, ownership.host_gid);
                let namespace = Mapping::one(host, (user.uid, user.gid)).namespace();
                let namespace = namespace.at("map the owners of files in", source.1)?;
                self.namespaces.push((ownership, namespace));
                self.namespaces.len() - 1
            }
        };
        mount::bind_open(source, target, Some(self.namespaces[at].1.as_fd()), depth)
    }

    /// Gives an empty volume what the image has in its place.
    fn fill(&self, volume: &Path, target: &Path) -> Result<(), BundleError> {
        if fs::read_dir(volume).at("list", volume)?.next().is_some() {
            return Ok(());
        }
        let Some(source) = self.container.inside.directory(target)? else { return Ok(()) };
        let to = File::open(volume).at("open", volume)?;
        let from_path = self.container.inside.on_host(target);
        tree::copy_between(
            (source.as_fd(), &from_path),
            (to.as_fd(), volume),
            Purpose::Plain.into(),
        )?;
        Ok(())
    }

    /// Returns the option, and sees to it that the root file system lets mounts through.
    fn propagation(&mut self, propagation: Propagation) -> &'static str {
        let (option, root) = match propagation {
            Propagation::Private => return "rprivate",
            Propagation::Slave => ("rslave", "rslave"),
            Propagation::Shared => ("rshared", "rshared"),
        };
        if self.propagation != Some("rshared") {
            self.propagation = Some(root);
        }
        option
    }
}

/// Opens what is at a path beneath a directory; makes a directory there like the one above all, for
/// this owner, if it is missing.
fn beneath(source: &Path, path: &Path, ownership: Option<Ownership>) -> Result<OwnedFd, PathError> {
    let here = source.join(path);
    let root = Beneath::new(source)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match root.open_as_root(path, flags, Mode::empty()) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let directory = root.mkdir_all(path, Mode::from_raw_mode(0o755))?;
    let top = fstat(root.as_fd()).at("look at", source)?;
    let (uid, gid) =
        ownership.map_or((top.st_uid, top.st_gid), |owner| (owner.host_uid, owner.host_gid));
    fchown(&directory, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
        .at("set the owner of", &here)?;
    fchmod(&directory, Mode::from_raw_mode(top.st_mode)).at("change the mode of", &here)?;
    Ok(directory)
}

/// Tells if it is the file system or the kernel that cannot map owners.
fn is_unsupported(error: &PathError) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::OPNOTSUPP]
        .iter()
        .any(|errno| error.source.raw_os_error() == Some(errno.raw_os_error()))
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

/// Tells if a path is `/proc` or in it.
pub(super) fn is_in_proc(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && components.next().is_some_and(|name| name.as_os_str() == "proc")
}

#[cfg(test)]
mod tests;
