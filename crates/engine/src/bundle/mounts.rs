//! Lists the mounts of a container: the standard ones, the engine's files, and the requested ones. `sources` opens what
//! is mounted.

use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::mount;
use oci_hooks_image::ImageConfig;
use oci_spec::runtime::Mount as Entry;

use super::devices::DeviceNode;
use super::options::{BundleOptions, MountRequest, MountSource, NamespaceSource, TmpfsMount};
use super::rootfs_dir::{RootfsDir, normalize_path};
use super::sources::PreparedSource;
use super::stage::{MountStage, StagePlace};
use super::volume::MountContext;
use super::{BundleError, ContainerInit, files};

/// Directory in a bundle for its mounts, before version 0.2.
const MOUNTS: &str = "mounts";

/// Docker's default size of `/dev/shm`.
pub const DEFAULT_SHM_BYTES: u64 = 64 << 20;

/// Unmounts the files that a version before 0.2 mounted in a bundle, if any.
///
/// Before this call, the directory of the bundle must not be removed: host files are mounted in it.
pub fn unmount(dir: &Path) -> Result<(), PathError> {
    let mounts = dir.join(MOUNTS);
    let entries = match fs::read_dir(&mounts) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_path("list", &mounts)?,
    };
    for entry in entries {
        let entry = entry.with_path("list", &mounts)?;
        let path = entry.path();
        mount::unmount(&path)?;
        // Remove the mount point only: if it is still mounted, its contents are the host's.
        let removed = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir(&path),
            _ => fs::remove_file(&path),
        };
        removed.with_path("remove", &path)?;
    }
    fs::remove_dir(&mounts).with_path("remove", &mounts)
}

/// The `mounts` of `config.json`, the propagation of the root file system that they need, and the
/// [`MountStage`] with their sources.
#[derive(Debug)]
pub struct PreparedMounts {
    pub entries: Vec<Entry>,
    pub propagation: Option<&'static str>,
    /// Sources of the entries, visible to the runtime only.
    pub stage: MountStage,
}

/// A mount, and its target with symlinks of the image resolved.
struct PlacedMount<'a> {
    target: PathBuf,
    what: PlacedSource<'a>,
}

enum PlacedSource<'a> {
    Asked(MountRequest),
    /// A file of the engine, writable by root of the container.
    File(HostFile),
    /// A program of the engine.
    Program(HostFile),
    Node(&'a DeviceNode),
}

/// Prepares the mounts of a container: opens their sources, and assigns each a place on the
/// [`MountStage`].
pub fn prepare(container: MountContext<'_>) -> Result<PreparedMounts, BundleError> {
    let MountContext { image, options, inside, .. } = container;
    let mut wanted = options.mounts.clone();
    for mount in &mut wanted {
        mount.target = checked_target(&mount.target)?;
    }
    wanted.extend(image_volumes(image, options, &wanted)?);
    let mut placed = Vec::new();
    for mount in wanted {
        let target = real_target(inside, &mount)?;
        if placed.iter().any(|other: &PlacedMount<'_>| other.target == target) {
            return Err(BundleError::DuplicateMount { path: target });
        }
        placed.push(PlacedMount { target, what: PlacedSource::Asked(mount) });
    }
    let mut entries = runtime_mounts(options);
    let is_asked = |target: &Path| placed.iter().any(|placed| placed.target == target);
    entries.retain(|entry| !is_asked(entry.destination()));
    let engine = engine_mounts(container)?;
    let engine: Vec<_> = engine.into_iter().filter(|mount| !is_asked(&mount.target)).collect();
    placed.splice(0..0, engine);
    // A mount must not hide another one below it; apart from depth, the order is kept.
    placed.sort_by_key(|placed| placed.target.components().count());

    let stage_root = options.stage.as_deref().or(container.rootfs.parent());
    let mut stage = MountStage::new(stage_root.unwrap_or(container.rootfs), container.rootfs);
    let mut propagation = None;
    let targets: Vec<PathBuf> = placed.iter().map(|placed| placed.target.clone()).collect();
    let runtimes: Vec<PathBuf> = entries.iter().map(|entry| entry.destination().clone()).collect();
    for PlacedMount { target, what } in placed {
        let is_above = |other: &PathBuf| *other != target && other.starts_with(&target);
        let is_below_runtimes = runtimes.iter().any(|other| target.starts_with(other));
        // A mount that contains others is attached in the root file system, which runtimes bind as a whole:
        // with a user namespace, crun 1.8 copies a mount without its submounts.
        let place = match (stage.is_above(&target), targets.iter().any(is_above)) {
            (true, _) => StagePlace::Above,
            (false, true) if !is_below_runtimes => StagePlace::Rootfs,
            (false, _) => StagePlace::Own,
        };
        let source = match &what {
            PlacedSource::Asked(MountRequest {
                source: MountSource::Tmpfs(tmpfs),
                read_only,
                ..
            }) => {
                let words = tmpfs_options(tmpfs, if *read_only { "ro" } else { "rw" });
                if place == StagePlace::Own {
                    // Mounted by the runtime: no other mount needs it before the container runs.
                    entries.push(entry(text(&target)?, "tmpfs", "tmpfs", words));
                    continue;
                }
                PreparedSource::of_memory(container, words)?
            }
            PlacedSource::Asked(mount) => PreparedSource::of_mount(container, mount, &target)?,
            PlacedSource::File(file) => PreparedSource::of_file(file.clone(), &target, false),
            PlacedSource::Program(file) => PreparedSource::of_program(file.clone(), &target)?,
            PlacedSource::Node(node) => PreparedSource::of_node(container, node)?,
        };
        if propagation != Some("rshared") {
            propagation = source.root_propagation().or(propagation);
        }
        let (destination, words) = (text(&target)?.to_owned(), source.mount_options()?);
        let path = stage.add(target, source, place);
        // Other mounts are part of the mount that contains them.
        if place == StagePlace::Own {
            entries.push(entry(&destination, "bind", text(&path)?, words));
        }
    }
    Ok(PreparedMounts { entries, propagation, stage })
}

/// Returns whether a path in the container is the target of a mount or below one, so that the mount
/// hides the image's files.
pub fn is_mounted(options: &BundleOptions, path: &Path) -> bool {
    options
        .mounts
        .iter()
        .any(|mount| normalize_path(path).starts_with(normalize_path(&mount.target)))
}

fn checked_target(target: &Path) -> Result<PathBuf, BundleError> {
    let path = normalize_path(target);
    if !target.is_absolute() || path == Path::new("/") {
        return Err(BundleError::MountTarget { path: target.to_owned() });
    }
    if path.starts_with("/proc") {
        return Err(BundleError::MountInProc { path: target.to_owned() });
    }
    Ok(path)
}

/// Resolves the target of a mount through the image's symlinks, and checks it.
///
/// Runtimes mask parts of `/proc` with the container's `/dev/null`: a mount with untrusted files must not
/// replace `/dev` (CVE-2025-31133).
fn real_target(inside: &RootfsDir, mount: &MountRequest) -> Result<PathBuf, BundleError> {
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

/// Returns volumes for the paths that the image declares and no other mount covers.
fn image_volumes(
    image: &ImageConfig,
    options: &BundleOptions,
    mounts: &[MountRequest],
) -> Result<Vec<MountRequest>, BundleError> {
    let Some(root) = &options.volume_root else { return Ok(Vec::new()) };
    let mut volumes: Vec<MountRequest> = Vec::new();
    for (at, path) in image.volumes.iter().enumerate() {
        let target = checked_target(Path::new(path))?;
        if mounts.iter().chain(&volumes).any(|mount| mount.target == target) {
            continue;
        }
        let path = root.join(at.to_string());
        let source = MountSource::Volume { path, copy: true, is_shared: false };
        volumes.push(MountRequest {
            target,
            source,
            subpath: None,
            read_only: false,
            id_mapping: None,
        });
    }
    Ok(volumes)
}

/// Mount point of POSIX shared memory.
const SHM: &str = "/dev/shm";

/// Returns the size of the host's `/dev/shm`, if larger than the default.
pub fn host_shm_bytes() -> Option<u64> {
    let stat = rustix::fs::statvfs(SHM).ok()?;
    Some(stat.f_blocks.saturating_mul(stat.f_frsize)).filter(|bytes| *bytes > DEFAULT_SHM_BYTES)
}

/// Group of terminals in all distributions.
const TTY: u32 = 5;

/// Returns the mounts that the runtime makes in every container.
fn runtime_mounts(options: &BundleOptions) -> Vec<Entry> {
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
    // Shows the queues of the container's IPC namespace; the host may not have it mounted.
    mounts.push(entry("/dev/mqueue", "mqueue", "mqueue", ["nosuid", "noexec", "nodev"]));
    // The host's `/dev/shm` is one of the engine's mounts. A size of 0 would mean no limit.
    if options.namespaces.ipc != NamespaceSource::Host && shm_bytes > 0 {
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

/// Returns the mounts of the engine's files and of devices.
fn engine_mounts(container: MountContext<'_>) -> Result<Vec<PlacedMount<'_>>, BundleError> {
    let MountContext { options, dir, .. } = container;
    let mut mounts = Vec::new();
    let mut file = |path: &Path, target: &str, what: fn(HostFile) -> PlacedSource<'static>| {
        let what = what(HostFile::open_trusted(path)?);
        mounts.push(PlacedMount { target: container.inside.real(Path::new(target))?, what });
        Ok::<_, BundleError>(())
    };
    if options.hosts.is_some() {
        file(&dir.join(files::HOSTS), "/etc/hosts", PlacedSource::File)?;
    }
    if options.dns.is_some() {
        file(&dir.join(files::RESOLV_CONF), "/etc/resolv.conf", PlacedSource::File)?;
    }
    if options.hostname.is_some() {
        file(&dir.join(files::HOSTNAME), "/etc/hostname", PlacedSource::File)?;
    }
    if let Some(init) = &options.init {
        file(&init.program, ContainerInit::TARGET, PlacedSource::Program)?;
    }
    if options.namespaces.ipc == NamespaceSource::Host {
        file(Path::new(SHM), SHM, PlacedSource::File)?;
    }
    let nodes = container.nodes.iter();
    mounts.extend(
        nodes.map(|node| PlacedMount { target: node.path.clone(), what: PlacedSource::Node(node) }),
    );
    Ok(mounts)
}

/// Returns a path as text for config.json.
pub fn text(path: &Path) -> Result<&str, BundleError> {
    path.to_str().ok_or_else(|| BundleError::NotUtf8 { path: path.to_owned() })
}

fn tmpfs_options(tmpfs: &TmpfsMount, access: &str) -> Vec<String> {
    let mut options: Vec<String> = ["noexec", "nosuid", "nodev"].map(str::to_owned).to_vec();
    for option in &tmpfs.options {
        // `exec` replaces `noexec`, and the reverse.
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

/// Returns whether a path is `/proc` or below it.
pub fn is_in_proc(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && components.next().is_some_and(|name| name.as_os_str() == "proc")
}

#[cfg(test)]
mod tests {
    use oci_hooks_host::privilege::{MappedIds, Privilege};

    use super::super::options::MountPropagation;
    use super::super::user::ContainerUser;
    use super::*;

    fn mount(target: &str, source: MountSource) -> MountRequest {
        MountRequest {
            target: target.into(),
            source,
            subpath: None,
            read_only: false,
            id_mapping: None,
        }
    }

    fn bind_source(path: &Path) -> MountSource {
        MountSource::Trusted {
            path: path.into(),
            propagation: MountPropagation::Private,
            recursive: true,
        }
    }

    fn prepare_for_test(options: &BundleOptions) -> Result<PreparedMounts, BundleError> {
        let dir = tempfile::tempdir().unwrap();
        let inside = RootfsDir::open(dir.path()).unwrap();
        prepare_in(&inside, &ImageConfig::default(), options)
    }

    fn prepare_in(
        inside: &RootfsDir,
        image: &ImageConfig,
        options: &BundleOptions,
    ) -> Result<PreparedMounts, BundleError> {
        let user = ContainerUser { uid: 0, gid: 0, groups: vec![0], home: "/".to_owned() };
        let (rootfs, dir) = (Path::new("/disk/merged"), tempfile::tempdir().unwrap());
        fs::write(dir.path().join("hosts"), "").unwrap();
        let dir = dir.path();
        prepare(MountContext { image, options, inside, user: &user, rootfs, dir, nodes: &[] })
    }

    fn with(mounts: Vec<MountRequest>) -> BundleOptions {
        BundleOptions { mounts, ..BundleOptions::default() }
    }

    fn options_of(entry: &Entry) -> &[String] {
        entry.options().as_deref().unwrap()
    }

    fn destinations(mounts: &PreparedMounts) -> Vec<&str> {
        mounts.entries.iter().map(|mount| mount.destination().to_str().unwrap()).collect()
    }

    #[test]
    fn every_container_has_the_usual_mounts() {
        let mounts = prepare_for_test(&BundleOptions::default()).unwrap();
        let expected =
            ["/proc", "/dev", "/dev/pts", "/sys", "/sys/fs/cgroup", "/dev/mqueue", "/dev/shm"];
        assert_eq!(destinations(&mounts), expected);
        assert_eq!(options_of(&mounts.entries[6])[4], "size=67108864");
    }

    #[test]
    fn terminals_belong_to_the_tty_group_if_it_exists() {
        let has_group = |privilege| {
            let mounts =
                prepare_for_test(&BundleOptions { privilege, ..BundleOptions::default() }).unwrap();
            options_of(&mounts.entries[2]).contains(&"gid=5".to_owned())
        };
        let mapped = |gids| Privilege::Mapped(MappedIds { uids: gids, gids });
        let found = [Privilege::Root, mapped(6), mapped(5), Privilege::Single].map(has_group);
        assert_eq!(found, [true, true, false, false]);
    }

    #[test]
    fn ipc_without_shared_memory_has_no_mount() {
        let options = BundleOptions { shm_size_bytes: Some(0), ..BundleOptions::default() };
        assert!(!destinations(&prepare_for_test(&options).unwrap()).contains(&"/dev/shm"));
    }

    #[test]
    fn mounts_are_sorted_below_their_parents_and_otherwise_keep_order() {
        let dir = tempfile::tempdir().unwrap();
        let targets = ["/b/c/d", "/b", "/other", "/a", "/a/x", "/etc"];
        let mut options = with(targets.map(|target| mount(target, bind_source(dir.path()))).into());
        options.hosts = Some(Vec::new());
        let mounts = prepare_for_test(&options).unwrap();
        let mounts_of_runtime = &destinations(&mounts)[7..];
        // Mounts that contain others are in the root file system already, with their submounts.
        assert_eq!(mounts_of_runtime, ["/other"]);
        assert_eq!(mounts.entries[7].source().as_deref(), Some(Path::new("/disk/mounts/1")));
    }

    #[test]
    fn requested_mounts_replace_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts");
        fs::write(&file, "").unwrap();
        let mut options = with(vec![
            mount("/dev/shm", MountSource::Tmpfs(TmpfsMount::default())),
            mount("/etc/hosts", bind_source(&file)),
        ]);
        options.hosts = Some(Vec::new());
        let mounts = prepare_for_test(&options).unwrap();
        let all = destinations(&mounts);
        for target in ["/dev/shm", "/etc/hosts"] {
            assert_eq!(all.iter().filter(|found| **found == target).count(), 1, "{target}");
        }
    }

    #[test]
    fn invalid_targets_are_rejected() {
        let target = |target: &str| {
            let mounts = vec![mount(target, MountSource::Tmpfs(TmpfsMount::default()))];
            prepare_for_test(&with(mounts)).unwrap_err().to_string()
        };
        for text in ["data", "", "/", "/..", "//"] {
            assert!(target(text).ends_with("expected an absolute path below /"), "{text}");
        }
        for text in ["/proc", "/proc/sys", "/x/../proc/self"] {
            assert!(target(text).ends_with("/proc is mounted by the runtime"), "{text}");
        }
        let twice =
            ["/data", "/x/../data/"].map(|t| mount(t, MountSource::Tmpfs(TmpfsMount::default())));
        assert_eq!(
            prepare_for_test(&with(twice.into())).unwrap_err().to_string(),
            "duplicate mount target /data"
        );
    }

    #[test]
    fn only_host_devices_and_tmpfs_can_replace_dev() {
        let dir = tempfile::tempdir().unwrap();
        for source in [bind_source(Path::new("/dev")), MountSource::Tmpfs(TmpfsMount::default())] {
            prepare_for_test(&with(vec![mount("/dev", source)])).unwrap();
        }
        let error =
            prepare_for_test(&with(vec![mount("/dev/", bind_source(dir.path()))])).unwrap_err();
        assert!(
            error.to_string().ends_with("on /dev: it would hide the container's devices"),
            "{error}"
        );
    }

    #[test]
    fn missing_sources_are_not_created() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let error =
            prepare_for_test(&with(vec![mount("/data", bind_source(&missing))])).unwrap_err();
        assert!(matches!(error, BundleError::NoSource { .. }), "{error}");
        assert!(!missing.exists());
        let error = prepare_for_test(&with(vec![mount("/data", bind_source(Path::new("data")))]))
            .unwrap_err();
        assert!(matches!(error, BundleError::RelativeSource { .. }), "{error}");
    }

    #[test]
    fn volumes_of_the_image_are_filled_once() {
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
        let mut options = with(vec![mount("/log", MountSource::Tmpfs(TmpfsMount::default()))]);
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
    fn tmpfs_options_replace_their_opposites() {
        let tmpfs = |words: &[&str]| TmpfsMount {
            options: words.iter().map(ToString::to_string).collect(),
            ..TmpfsMount::default()
        };
        assert_eq!(
            tmpfs_options(&tmpfs(&["exec", "nosuid", "uid=5"]), "rw"),
            ["nodev", "exec", "nosuid", "uid=5", "mode=1777", "rw"]
        );
        let sized = TmpfsMount { size_bytes: Some(4096), mode: Some(0o700), options: Vec::new() };
        let expected = ["noexec", "nosuid", "nodev", "size=4096", "mode=700", "ro"];
        assert_eq!(tmpfs_options(&sized, "ro"), expected);
    }

    #[test]
    fn shared_mounts_need_a_shared_root() {
        let dir = tempfile::tempdir().unwrap();
        let source = |propagation| MountSource::Trusted {
            path: dir.path().into(),
            propagation,
            recursive: false,
        };
        let mounts = prepare_for_test(&with(vec![
            mount("/a", source(MountPropagation::Shared)),
            mount("/b", source(MountPropagation::Slave)),
        ]))
        .unwrap();
        assert_eq!(mounts.propagation, Some("rshared"));
        let words = options_of(&mounts.entries[8]);
        assert_eq!(words[..3], ["rbind", "rslave", "rw"]);
        assert!(["nosuid", "nodev"].iter().all(|word| words.iter().any(|found| found == word)));
    }
}
