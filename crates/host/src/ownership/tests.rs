use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_files::descent::DIRECTORY;
use oci_hooks_testsupport::descriptors::with_few_descriptors;
use rustix::fs::{
    RenameFlags, XattrFlags, fchown, makedev, mkdirat, mknodat, openat, renameat_with, setxattr,
};
use rustix::process::geteuid;

use super::super::mount;
use super::super::removal::remove_tree;
use super::super::share::{ShareOptions, share_tree};
use super::super::userns::{IdRange, NamespaceMapping};
use super::*;

const USER: (u32, u32) = (12_345, 12_346);
const PRIVATE: u32 = 0x6000_0000;
/// Another user of the host.
const OTHER: u32 = 54_321;

fn file_owners() -> FileOwners {
    FileOwners { owner: USER, private_ids: PRIVATE..PRIVATE + 65_536, has_acls: true }
}

/// Creates a temporary directory on tmpfs. Returns `None` without root: only root gives files away.
fn directory() -> Option<tempfile::TempDir> {
    geteuid().is_root().then(|| tempfile::tempdir_in("/dev/shm").unwrap())
}

fn run_with(path: &Path, owners: &FileOwners) -> OwnershipReport {
    let report = restore_ownership(File::open(path).unwrap().as_fd(), path, owners).unwrap();
    assert_eq!(report.problems.count, 0, "{:?}", report.problems);
    report
}

fn run(path: &Path) -> OwnershipReport {
    run_with(path, &file_owners())
}

/// Creates a file or, if the path ends with a slash, a directory.
fn make(path: &Path, mode: u32, (uid, gid): (u32, u32)) {
    match path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        true => fs::create_dir(path).unwrap(),
        false => fs::write(path, "").unwrap(),
    }
    lchown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn node(path: &Path, kind: FileType, device: u64, uid: u32) {
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o666), device).unwrap();
    lchown(path, Some(uid), Some(uid)).unwrap();
}

fn owner(path: &Path) -> (u32, u32) {
    let found = path.symlink_metadata().unwrap();
    (found.uid(), found.gid())
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

#[test]
fn private_ids_are_replaced_and_other_owners_kept() {
    let Some(dir) = directory() else { return };
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b")).unwrap();
    for name in ["a", "a/b"] {
        lchown(at(name), Some(PRIVATE), Some(PRIVATE + 1)).unwrap();
    }
    fs::set_permissions(at("a/b"), fs::Permissions::from_mode(0o2000)).unwrap();
    make(&at("a/b/private"), 0o600, (PRIVATE + 65_535, PRIVATE));
    fs::hard_link(at("a/b/private"), at("second")).unwrap();
    symlink("/etc/passwd", at("link")).unwrap();
    lchown(at("link"), Some(PRIVATE), Some(0)).unwrap();
    make(&at("group"), 0o640, (USER.0, PRIVATE + 5));
    for (name, ids) in [
        ("root", (0, 0)),
        ("root-group", (0, PRIVATE)),
        ("other", (OTHER, OTHER)),
        ("past", (PRIVATE + 65_536, PRIVATE)),
        ("user", USER),
        ("user-other", (USER.0, OTHER)),
    ] {
        make(&at(name), 0o644, ids);
    }
    let report = run(dir.path());
    assert_eq!((report.changed, report.removed_devices), (5, 0));
    for name in ["a", "a/b", "a/b/private", "second", "link", "group", "user"] {
        assert_eq!(owner(&at(name)), USER, "{name}");
    }
    assert_eq!(mode(&at("a/b")), 0o2000);
    assert_eq!(owner(&at("root")), (0, 0));
    assert_eq!(owner(&at("root-group")), (0, PRIVATE));
    assert_eq!(owner(&at("other")), (OTHER, OTHER));
    assert_eq!(owner(&at("past")), (PRIVATE + 65_536, PRIVATE));
    assert_eq!(owner(&at("user-other")), (USER.0, OTHER));
    assert_eq!(run(dir.path()).changed, 0);
}

#[test]
fn ownership_of_the_directory_itself_is_restored() {
    let Some(dir) = directory() else { return };
    lchown(dir.path(), Some(PRIVATE), Some(PRIVATE)).unwrap();
    assert_eq!(run(dir.path()).changed, 1);
    assert_eq!(owner(dir.path()), USER);
    lchown(dir.path(), Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(run(dir.path()).changed, 0);
    assert_eq!(owner(dir.path()), (OTHER, OTHER));
}

#[test]
fn permissions_of_others_are_removed_from_user_files() {
    let Some(dir) = directory() else { return };
    let at = |name: &str| dir.path().join(name);
    make(&at("disk"), 0o2755, (USER.0, OTHER));
    make(&at("private"), 0o6711, (PRIVATE, PRIVATE));
    make(&at("no-run"), 0o2640, (PRIVATE, PRIVATE));
    make(&at("root"), 0o4755, (0, 0));
    // Version 2 of file capabilities: cap_setuid, permitted and effective.
    let mut value = [0; 20];
    (value[0], value[3], value[4]) = (1, 2, 1 << 7);
    for (name, uid) in [("able", USER.0), ("able-private", PRIVATE), ("able-root", 0)] {
        make(&at(name), 0o755, (uid, uid));
        setxattr(at(name), CAPABILITY, &value, XattrFlags::empty()).unwrap();
    }
    assert_eq!(run(dir.path()).changed, 5);
    assert_eq!(["disk", "private", "no-run"].map(|name| mode(&at(name))), [0o755, 0o711, 0o640]);
    assert_eq!(mode(&at("root")), 0o4755);
    let has = |name| may_have_attribute(File::open(dir.path()).unwrap().as_fd(), name, CAPABILITY);
    assert_eq!([c"able", c"able-private", c"able-root"].map(has), [false, false, true]);
    let top = File::open(dir.path()).unwrap();
    let by_link = |name| attribute_bytes_by_link(top.as_fd(), name, CAPABILITY);
    assert_eq!([c"able", c"able-root"].map(by_link), [Err(Errno::NODATA), Ok(20)]);
}

#[test]
fn devices_of_the_user_are_removed_under_all_names() {
    let Some(dir) = directory() else { return };
    let at = |name: &str| dir.path().join(name);
    let null = makedev(1, 3);
    node(&at("block"), FileType::BlockDevice, makedev(7, 0), USER.0);
    node(&at("private"), FileType::CharacterDevice, null, PRIVATE);
    fs::create_dir(at("a")).unwrap();
    fs::hard_link(at("private"), at("a/second")).unwrap();
    fs::hard_link(at("private"), at("third")).unwrap();
    node(&at("root"), FileType::CharacterDevice, null, 0);
    node(&at("whiteout"), FileType::CharacterDevice, 0, PRIVATE);
    node(&at("fifo"), FileType::Fifo, 0, PRIVATE);
    let report = run(dir.path());
    assert_eq!((report.changed, report.removed_devices), (2, 4));
    for name in ["block", "private", "a/second", "third"] {
        assert!(!at(name).exists(), "{name}");
    }
    assert_eq!(["whiteout", "fifo"].map(|name| owner(&at(name))), [USER; 2]);
    assert_eq!((owner(&at("root")), mode(&at("root"))), ((0, 0), 0o666 & !umask()));
}

fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn mounts_in_the_directory_are_kept() {
    let Some(dir) = directory() else { return };
    let inside = dir.path().join("mounted");
    fs::create_dir(&inside).unwrap();
    mount::mount_tmpfs(&inside, 0o700, Some(1 << 20)).unwrap();
    make(&inside.join("private"), 0o4755, (PRIVATE, PRIVATE));
    let report = run(dir.path());
    let (owner, mode) = (owner(&inside.join("private")), mode(&inside.join("private")));
    mount::unmount(&inside).unwrap();
    assert_eq!((report.changed, owner, mode), (0, (PRIVATE, PRIVATE), 0o4755));
}

#[test]
fn two_thousand_levels_need_few_descriptors_and_little_stack() {
    const LEVELS: usize = 2000;
    let test = "ownership::tests::two_thousand_levels_need_few_descriptors_and_little_stack";
    with_few_descriptors(test, || {
        let Some(dir) = directory() else { return };
        let name = "n".repeat(255);
        let mut here = OwnedFd::from(File::open(dir.path()).unwrap());
        for _ in 0..LEVELS {
            mkdirat(&here, &*name, Mode::RWXU).unwrap();
            here = openat(&here, &*name, DIRECTORY, Mode::empty()).unwrap();
            fchown(&here, Some(Uid::from_raw(PRIVATE)), None).unwrap();
        }
        assert_eq!(run(dir.path()).changed, LEVELS as u64);
        let found = fstat(&here).unwrap();
        assert_eq!((found.st_uid, found.st_gid), USER);
        // An open directory would keep all its parents in the kernel's cache, which is walked at each removal.
        drop(here);
        remove_tree(dir.path()).unwrap();
    });
}

#[test]
fn concurrently_swapped_files_grant_nothing() {
    const TRIES: usize = 10_000;
    let Some(dir) = directory() else { return };
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("top/dir")).unwrap();
    fs::create_dir(at("outside")).unwrap();
    make(&at("top/dir/file"), 0o644, (PRIVATE, PRIVATE));
    make(&at("top/hard"), 0o644, (PRIVATE, PRIVATE));
    make(&at("outside/file"), 0o4600, (0, 0));
    // A file of another user's container, reachable only through a link.
    make(&at("outside/foreign"), 0o644, (PRIVATE, PRIVATE));
    node(&at("outside/device"), FileType::CharacterDevice, makedev(1, 3), 0);
    make(&at("top/dir/foreign"), 0o644, (PRIVATE, PRIVATE));
    symlink(at("outside"), at("top/link")).unwrap();
    fs::hard_link(at("outside/file"), at("top/hard-root")).unwrap();
    fs::hard_link(at("outside/device"), at("top/device-root")).unwrap();
    node(&at("top/device"), FileType::CharacterDevice, makedev(1, 3), USER.0);
    let top = File::open(at("top")).unwrap();
    let given: Vec<File> = ["top/dir/file", "top/hard", "top/dir/foreign"]
        .map(|name| File::open(at(name)).unwrap())
        .into();
    let again = || {
        for file in &given {
            fchown(file, Some(Uid::from_raw(PRIVATE)), None).unwrap();
        }
    };
    let outside = || {
        let seen = |name| (owner(&at(name)), mode(&at(name)));
        ["outside/file", "outside/foreign", "outside/device"].map(seen)
    };
    let before = outside();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(120);
            while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
                for (one, two) in [("dir", "link"), ("hard", "hard-root")] {
                    let _ = renameat_with(&top, one, &top, two, RenameFlags::EXCHANGE);
                }
                let _ = renameat_with(&top, "device", &top, "device-root", RenameFlags::EXCHANGE);
            }
        });
        // Prove first that the attacker wins at once against changes by path.
        let deadline = Instant::now() + Duration::from_secs(60);
        while outside() == before && Instant::now() < deadline {
            again();
            let found = statat(&top, "dir/file", AtFlags::empty());
            if found.is_ok_and(|found| found.st_uid == PRIVATE) {
                let _ =
                    chownat(&top, "dir/file", Some(Uid::from_raw(USER.0)), None, AtFlags::empty());
            }
        }
        let is_beaten = outside() != before;
        lchown(at("outside/file"), Some(0), Some(0)).unwrap();
        fs::set_permissions(at("outside/file"), fs::Permissions::from_mode(0o4600)).unwrap();
        for _ in 0..TRIES {
            again();
            let _ = restore_ownership(top.as_fd(), Path::new("/top"), &file_owners());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(is_beaten, "the swapper is too slow to prove anything");
    });
    assert_eq!(outside(), before);
}

/// The runner's user, and the first of its subordinate ids.
const RUNNER: u32 = 12_345;
const FIRST: u32 = 0x6000_0000;
const COUNT: u32 = 65_536;
/// Users and groups of the host that the namespace does not map.
const HOST: u32 = 54_321;

/// Environment variable with the test's directory, for the process in the namespace.
const MARK: &str = "OCI_HOOKS_TEST_IN_USER_NAMESPACE";

/// Returns the owners of files in the user namespace.
fn namespace_owners() -> FileOwners {
    FileOwners { owner: (0, 0), private_ids: 1..COUNT + 1, has_acls: true }
}

/// Prepares a directory on tmpfs as root, calls the body in a new process as root of a user namespace of the
/// runner, and then calls `check`. Only root can map so many ids.
fn run_in_user_namespace(test: &str, prepare: fn(&Path), body: fn(&Path), check: fn(&Path)) {
    if let Some(dir) = std::env::var_os(MARK) {
        return body(Path::new(&dir));
    }
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    lchown(dir.path(), Some(RUNNER), Some(RUNNER)).unwrap();
    prepare(dir.path());
    let ranges = || {
        let range = |disk, view, count| IdRange { disk, view, count };
        vec![range(0, RUNNER, 1), range(1, FIRST, COUNT)]
    };
    let namespace = NamespaceMapping { uids: ranges(), gids: ranges() }.namespace().unwrap();
    let link = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--user={link}")).args(["--setuid", "0", "--setgid", "0", "--"]);
    enter.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    let output = enter.env(MARK, dir.path()).output().unwrap();
    let _ = std::io::stdout().write_all(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{test} was not run");
    check(dir.path());
}

#[test]
fn subordinate_ids_are_replaced_and_other_owners_kept() {
    run_in_user_namespace(
        "ownership::tests::subordinate_ids_are_replaced_and_other_owners_kept",
        |dir| {
            let make = |name: &str, mode, ids| make(&dir.join(name), mode, ids);
            make("first", 0o600, (FIRST, FIRST));
            make("nobody", 0o600, (FIRST + 65_533, FIRST + 65_533));
            make("last", 0o600, (FIRST + COUNT - 1, RUNNER));
            make("group", 0o640, (RUNNER, FIRST + 5));
            make("host-group", 0o640, (RUNNER, HOST));
            make("root", 0o600, (0, 0));
            make("host", 0o4755, (HOST, HOST));
            make("lost+found/", 0o700, (0, 0));
            make("host-dir/", 0o700, (HOST, HOST));
            // A file that a container creates in a set-group-ID directory of a group of the host.
            make("set-group/", 0o2775, (RUNNER, HOST));
            make("set-group/file", 0o600, (FIRST + 999, HOST));
            make("set-group/dir/", 0o2700, (FIRST + 999, HOST));
            make("set-group/dir/file", 0o4755, (FIRST + 999, HOST));
        },
        |dir| {
            assert_eq!(run_with(dir, &namespace_owners()).changed, 7);
            assert_eq!(run_with(dir, &namespace_owners()).changed, 0);
        },
        |dir| {
            for name in ["first", "nobody", "last", "group", "set-group/file", "set-group/dir/file"]
            {
                assert_eq!(owner(&dir.join(name)), (RUNNER, RUNNER), "{name}");
            }
            assert_eq!(owner(&dir.join("set-group/dir")), (RUNNER, RUNNER));
            let mode = |name| dir.join(name).metadata().unwrap().mode() & 0o7777;
            assert_eq!([mode("set-group/dir/file"), mode("host")], [0o755, 0o4755]);
            for name in ["host-group", "set-group"] {
                assert_eq!(owner(&dir.join(name)), (RUNNER, HOST), "{name}");
            }
            assert_eq!(["root", "lost+found"].map(|name| owner(&dir.join(name))), [(0, 0); 2]);
            let host = ["host", "host-dir"].map(|name| owner(&dir.join(name)));
            assert_eq!(host, [(HOST, HOST); 2]);
        },
    );
}

#[test]
fn shared_files_are_restored_in_user_namespace() {
    run_in_user_namespace(
        "ownership::tests::shared_files_are_restored_in_user_namespace",
        |dir| {
            make(&dir.join("dir/"), 0o755, (RUNNER, RUNNER));
            make(&dir.join("dir/file"), 0o644, (RUNNER, RUNNER));
        },
        |dir| {
            let owners = namespace_owners();
            let with =
                ShareOptions { uid: 1000, owner: 0, private_ids: owners.private_ids.clone() };
            let report = share_tree(File::open(dir).unwrap().as_fd(), dir, &with).unwrap();
            assert_eq!((report.shared, report.problems.count), (3, 0), "{:?}", report.problems);
            assert_eq!(run_with(dir, &owners).changed, 3);
            for name in ["dir", "dir/file"] {
                lchown(dir.join(name), Some(1000), Some(1000)).unwrap();
            }
            assert_eq!(run_with(dir, &owners).changed, 2);
            assert_eq!(run_with(dir, &owners).changed, 0);
        },
        |dir| {
            for name in ["", "dir", "dir/file"] {
                let path = dir.join(name);
                assert_eq!((owner(&path), mode(&path) & 0o7022), ((RUNNER, RUNNER), 0), "{name}");
            }
        },
    );
}
