use super::super::options::Propagation;
use super::super::user::User;
use super::*;
use crate::sys::privilege::{Ids, Privilege};

fn mount(target: &str, source: MountSource) -> Mount {
    Mount { target: target.into(), source, subpath: None, read_only: false, id_mapping: None }
}

fn bind(path: &Path) -> MountSource {
    MountSource::Trusted { path: path.into(), propagation: Propagation::Private, recursive: true }
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
    let twice = ["/data", "/x/../data/"].map(|t| mount(t, MountSource::Tmpfs(Tmpfs::default())));
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
