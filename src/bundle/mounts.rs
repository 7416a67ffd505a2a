//! Mounts: the runtime's own, the engine's files, and what was asked for.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::Mount as Entry;

use super::devices::Node;
use super::options::{Mount, MountSource, Namespace, Options, Tmpfs};
use super::rootfs_dir::{RootfsDir, normal};
use super::sources::Source;
use super::stage::{Place, Stage};
use super::volume::MountContext;
use super::{BundleError, Init, files};
use crate::image::ImageConfig;
use crate::sys::fs::{PathContext as _, PathError};
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
pub struct Mounts {
    pub entries: Vec<Entry>,
    pub propagation: Option<&'static str>,
    /// What the entries name, for the runtime alone.
    pub stage: Stage,
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
pub fn prepare(container: MountContext<'_>) -> Result<Mounts, BundleError> {
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
pub fn is_mounted(options: &Options, path: &Path) -> bool {
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
pub fn text(path: &Path) -> Result<&str, BundleError> {
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
pub fn is_in_proc(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && components.next().is_some_and(|name| name.as_os_str() == "proc")
}

#[cfg(test)]
mod tests {
    use super::super::options::Propagation;
    use super::super::user::User;
    use super::*;
    use crate::sys::privilege::{Ids, Privilege};

    fn mount(target: &str, source: MountSource) -> Mount {
        Mount { target: target.into(), source, subpath: None, read_only: false, id_mapping: None }
    }

    fn bind(path: &Path) -> MountSource {
        MountSource::Trusted {
            path: path.into(),
            propagation: Propagation::Private,
            recursive: true,
        }
    }

    fn prepared(options: &Options) -> Result<Mounts, BundleError> {
        let dir = tempfile::tempdir().unwrap();
        let inside = RootfsDir::open(dir.path()).unwrap();
        prepare_in(&inside, &ImageConfig::default(), options)
    }

    fn prepare_in(
        inside: &RootfsDir,
        image: &ImageConfig,
        options: &Options,
    ) -> Result<Mounts, BundleError> {
        let user = User { uid: 0, gid: 0, groups: vec![0], home: "/".to_owned() };
        let (rootfs, dir) = (Path::new("/disk/merged"), tempfile::tempdir().unwrap());
        fs::write(dir.path().join("hosts"), "").unwrap();
        let dir = dir.path();
        prepare(MountContext { image, options, inside, user: &user, rootfs, dir, nodes: &[] })
    }

    fn with(mounts: Vec<Mount>) -> Options {
        Options { mounts, ..Options::default() }
    }

    fn options_of(entry: &Entry) -> &[String] {
        entry.options().as_deref().unwrap()
    }

    fn destinations(mounts: &Mounts) -> Vec<&str> {
        mounts.entries.iter().map(|mount| mount.destination().to_str().unwrap()).collect()
    }

    #[test]
    fn every_container_has_what_programs_expect() {
        let mounts = prepared(&Options::default()).unwrap();
        let expected =
            ["/proc", "/dev", "/dev/pts", "/sys", "/sys/fs/cgroup", "/dev/mqueue", "/dev/shm"];
        assert_eq!(destinations(&mounts), expected);
        assert_eq!(options_of(&mounts.entries[6])[4], "size=67108864");
    }

    #[test]
    fn terminals_belong_to_a_group_if_there_is_one() {
        let has_group = |privilege| {
            let mounts = prepared(&Options { privilege, ..Options::default() }).unwrap();
            options_of(&mounts.entries[2]).contains(&"gid=5".to_owned())
        };
        let mapped = |gids| Privilege::Mapped(Ids { uids: gids, gids });
        let found = [Privilege::Root, mapped(6), mapped(5), Privilege::Single].map(has_group);
        assert_eq!(found, [true, true, false, false]);
    }

    #[test]
    fn no_shared_memory_is_no_mount() {
        let options = Options { shm_size_bytes: Some(0), ..Options::default() };
        assert!(!destinations(&prepared(&options).unwrap()).contains(&"/dev/shm"));
    }

    #[test]
    fn a_mount_comes_after_those_above_it_and_else_in_its_order() {
        let dir = tempfile::tempdir().unwrap();
        let targets = ["/b/c/d", "/b", "/other", "/a", "/a/x", "/etc"];
        let mut options = with(targets.map(|target| mount(target, bind(dir.path()))).into());
        options.hosts = Some(Vec::new());
        let mounts = prepared(&options).unwrap();
        let mounts_of_runtime = &destinations(&mounts)[7..];
        // What has others in it is in the root file system already, and they are in it.
        assert_eq!(mounts_of_runtime, ["/other"]);
        assert_eq!(mounts.entries[7].source().as_deref(), Some(Path::new("/disk/mounts/1")));
    }

    #[test]
    fn what_is_asked_for_takes_the_place_of_the_default() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts");
        fs::write(&file, "").unwrap();
        let mut options = with(vec![
            mount("/dev/shm", MountSource::Tmpfs(Tmpfs::default())),
            mount("/etc/hosts", bind(&file)),
        ]);
        options.hosts = Some(Vec::new());
        let mounts = prepared(&options).unwrap();
        let all = destinations(&mounts);
        for target in ["/dev/shm", "/etc/hosts"] {
            assert_eq!(all.iter().filter(|found| **found == target).count(), 1, "{target}");
        }
    }

    #[test]
    fn targets_that_cannot_be_are_refused() {
        let target = |target: &str| {
            let mounts = vec![mount(target, MountSource::Tmpfs(Tmpfs::default()))];
            prepared(&with(mounts)).unwrap_err().to_string()
        };
        for text in ["data", "", "/", "/..", "//"] {
            assert!(target(text).ends_with("expected an absolute path below /"), "{text}");
        }
        for text in ["/proc", "/proc/sys", "/x/../proc/self"] {
            assert!(target(text).ends_with("/proc is mounted by the runtime"), "{text}");
        }
        let twice =
            ["/data", "/x/../data/"].map(|t| mount(t, MountSource::Tmpfs(Tmpfs::default())));
        assert_eq!(
            prepared(&with(twice.into())).unwrap_err().to_string(),
            "duplicate mount target /data"
        );
    }

    #[test]
    fn only_the_devices_of_the_host_and_memory_take_the_place_of_the_devices() {
        let dir = tempfile::tempdir().unwrap();
        for source in [bind(Path::new("/dev")), MountSource::Tmpfs(Tmpfs::default())] {
            prepared(&with(vec![mount("/dev", source)])).unwrap();
        }
        let error = prepared(&with(vec![mount("/dev/", bind(dir.path()))])).unwrap_err();
        assert!(
            error.to_string().ends_with("on /dev: it would hide the container's devices"),
            "{error}"
        );
    }

    #[test]
    fn sources_that_are_not_there_are_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let error = prepared(&with(vec![mount("/data", bind(&missing))])).unwrap_err();
        assert!(matches!(error, BundleError::NoSource { .. }), "{error}");
        assert!(!missing.exists());
        let error = prepared(&with(vec![mount("/data", bind(Path::new("data")))])).unwrap_err();
        assert!(matches!(error, BundleError::RelativeSource { .. }), "{error}");
    }

    #[test]
    fn volumes_of_the_image_are_filled_from_it_once() {
        let dir = tempfile::tempdir().unwrap();
        let [root, volumes] = ["root", "volumes"].map(|name| dir.path().join(name));
        fs::create_dir_all(root.join("srv/data")).unwrap();
        fs::write(root.join("srv/data/seed"), "from the image").unwrap();
        std::os::unix::fs::symlink("srv/data", root.join("data")).unwrap();
        let inside = RootfsDir::open(&root).unwrap();
        let image = ImageConfig {
            volumes: ["/data", "/log/", "/tmp"].map(str::to_owned).into(),
            ..ImageConfig::default()
        };
        let mut options = with(vec![mount("/log", MountSource::Tmpfs(Tmpfs::default()))]);
        options.volume_root = Some(volumes.clone());
        let prepare = || prepare_in(&inside, &image, &options).unwrap();
        let mounts = prepare();
        assert_eq!(destinations(&mounts)[7..], ["/log", "/tmp", "/srv/data"]);
        let copied = volumes.join("0/seed");
        assert_eq!(fs::read_to_string(&copied).unwrap(), "from the image");
        fs::write(&copied, "changed").unwrap();
        prepare();
        assert_eq!(fs::read_to_string(&copied).unwrap(), "changed");
    }

    #[test]
    fn options_of_memory_replace_their_opposites() {
        let tmpfs = |words: &[&str]| Tmpfs {
            options: words.iter().map(ToString::to_string).collect(),
            ..Tmpfs::default()
        };
        assert_eq!(
            tmpfs_options(&tmpfs(&["exec", "nosuid", "uid=5"]), "rw"),
            ["nodev", "exec", "nosuid", "uid=5", "mode=1777", "rw"]
        );
        let sized = Tmpfs { size_bytes: Some(4096), mode: Some(0o700), options: Vec::new() };
        let expected = ["noexec", "nosuid", "nodev", "size=4096", "mode=700", "ro"];
        assert_eq!(tmpfs_options(&sized, "ro"), expected);
    }

    #[test]
    fn shared_mounts_need_a_root_that_lets_them_through() {
        let dir = tempfile::tempdir().unwrap();
        let source = |propagation| MountSource::Trusted {
            path: dir.path().into(),
            propagation,
            recursive: false,
        };
        let mounts = prepared(&with(vec![
            mount("/a", source(Propagation::Shared)),
            mount("/b", source(Propagation::Slave)),
        ]))
        .unwrap();
        assert_eq!(mounts.propagation, Some("rshared"));
        let words = options_of(&mounts.entries[8]);
        assert_eq!(words[..3], ["rbind", "rslave", "rw"]);
        assert!(["nosuid", "nodev"].iter().all(|word| words.iter().any(|found| found == word)));
    }
}
