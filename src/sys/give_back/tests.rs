mod in_user_namespace;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    RenameFlags, XattrFlags, fchown, makedev, mkdirat, mknodat, openat, renameat_with, setxattr,
};
use rustix::process::geteuid;

use super::super::descent::DIRECTORY;
use super::super::mount;
use super::super::removal::remove_tree;
use super::super::tests::with_few_descriptors;
use super::*;

const USER: (u32, u32) = (12_345, 12_346);
const PRIVATE: u32 = 0x6000_0000;
/// Somebody else of the host.
const OTHER: u32 = 54_321;

fn ids() -> GiveBack {
    GiveBack { owner: USER, private: PRIVATE..PRIVATE + 65_536, has_lists: true }
}

/// Makes a directory in memory, taken away when it is dropped. None for those who are not root: only
/// root gives files away.
fn directory() -> Option<tempfile::TempDir> {
    geteuid().is_root().then(|| tempfile::tempdir_in("/dev/shm").unwrap())
}

fn run(path: &Path) -> Report {
    let report = give_back(File::open(path).unwrap().as_fd(), path, &ids()).unwrap();
    assert_eq!(report.problems.count, 0, "{:?}", report.problems);
    report
}

fn make(path: &Path, mode: u32, (uid, gid): (u32, u32)) {
    fs::write(path, "").unwrap();
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
fn what_belongs_to_nobody_is_given_and_what_belongs_to_others_stays() {
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
fn the_directory_itself_is_given_back_too() {
    let Some(dir) = directory() else { return };
    lchown(dir.path(), Some(PRIVATE), Some(PRIVATE)).unwrap();
    assert_eq!(run(dir.path()).changed, 1);
    assert_eq!(owner(dir.path()), USER);
    lchown(dir.path(), Some(OTHER), Some(OTHER)).unwrap();
    assert_eq!(run(dir.path()).changed, 0);
    assert_eq!(owner(dir.path()), (OTHER, OTHER));
}

#[test]
fn rights_of_others_are_taken_from_files_of_the_user() {
    let Some(dir) = directory() else { return };
    let at = |name: &str| dir.path().join(name);
    make(&at("disk"), 0o2755, (USER.0, OTHER));
    make(&at("private"), 0o6711, (PRIVATE, PRIVATE));
    make(&at("no-run"), 0o2640, (PRIVATE, PRIVATE));
    make(&at("root"), 0o4755, (0, 0));
    // cap_setuid, permitted and effective, of the second version.
    let mut value = [0; 20];
    (value[0], value[3], value[4]) = (1, 2, 1 << 7);
    for (name, uid) in [("able", USER.0), ("able-private", PRIVATE), ("able-root", 0)] {
        make(&at(name), 0o755, (uid, uid));
        setxattr(at(name), CAPABILITY, &value, XattrFlags::empty()).unwrap();
    }
    assert_eq!(run(dir.path()).changed, 5);
    assert_eq!(["disk", "private", "no-run"].map(|name| mode(&at(name))), [0o755, 0o711, 0o640]);
    assert_eq!(mode(&at("root")), 0o4755);
    let has = |name| may_have(File::open(dir.path()).unwrap().as_fd(), name, CAPABILITY);
    assert_eq!([c"able", c"able-private", c"able-root"].map(has), [false, false, true]);
    let top = File::open(dir.path()).unwrap();
    let by_link = |name| attribute_bytes_by_link(top.as_fd(), name, CAPABILITY);
    assert_eq!([c"able", c"able-root"].map(by_link), [Err(Errno::NODATA), Ok(20)]);
}

#[test]
fn devices_of_the_user_are_removed_under_all_their_names() {
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
fn what_is_mounted_there_stays() {
    let Some(dir) = directory() else { return };
    let inside = dir.path().join("mounted");
    fs::create_dir(&inside).unwrap();
    mount::memory(&inside, 0o700, Some(1 << 20)).unwrap();
    make(&inside.join("private"), 0o4755, (PRIVATE, PRIVATE));
    let report = run(dir.path());
    let (owner, mode) = (owner(&inside.join("private")), mode(&inside.join("private")));
    mount::unmount(&inside).unwrap();
    assert_eq!((report.changed, owner, mode), (0, (PRIVATE, PRIVATE), 0o4755));
}

#[test]
fn what_is_as_it_should_be_is_only_looked_at() {
    let Some(dir) = directory() else { return };
    for parent in 0..50 {
        let parent = dir.path().join(parent.to_string());
        fs::create_dir(&parent).unwrap();
        for name in 0..1000 {
            make(&parent.join(name.to_string()), 0o644, USER);
        }
    }
    let start = Instant::now();
    assert_eq!(run(dir.path()).changed, 0);
    println!("50 000 entries with nothing to change took {:?}", start.elapsed());
}

#[test]
fn a_hundred_thousand_levels_take_few_descriptors_and_little_stack() {
    const LEVELS: usize = 100_000;
    let test = "sys::give_back::tests::\
                a_hundred_thousand_levels_take_few_descriptors_and_little_stack";
    with_few_descriptors(test, || {
        let Some(dir) = directory() else { return };
        let name = "n".repeat(255);
        let mut here = OwnedFd::from(File::open(dir.path()).unwrap());
        for _ in 0..LEVELS {
            mkdirat(&here, &*name, Mode::RWXU).unwrap();
            here = openat(&here, &*name, DIRECTORY, Mode::empty()).unwrap();
            fchown(&here, Some(Uid::from_raw(PRIVATE)), None).unwrap();
        }
        let start = Instant::now();
        assert_eq!(run(dir.path()).changed, LEVELS as u64);
        println!("{LEVELS} levels took {:?}", start.elapsed());
        let found = fstat(&here).unwrap();
        assert_eq!((found.st_uid, found.st_gid), USER);
        // Held open, it would keep all that are above it in the kernel, which looks at them each time.
        drop(here);
        let start = Instant::now();
        remove_tree(dir.path()).unwrap();
        println!("removing them took {:?}", start.elapsed());
        assert!(!dir.path().exists());
    });
}

#[test]
fn who_swaps_files_meanwhile_wins_nothing() {
    const TRIES: usize = 10_000;
    let Some(dir) = directory() else { return };
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("top/dir")).unwrap();
    fs::create_dir(at("outside")).unwrap();
    make(&at("top/dir/file"), 0o644, (PRIVATE, PRIVATE));
    make(&at("top/hard"), 0o644, (PRIVATE, PRIVATE));
    make(&at("outside/file"), 0o4600, (0, 0));
    // Another user's container made it, and its name leads there through a link alone.
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
        // By names, as it was done before, they win at once.
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
        let mut changed = 0;
        for _ in 0..TRIES {
            again();
            let report = give_back(top.as_fd(), Path::new("/top"), &ids());
            changed += report.as_ref().map_or(0, |report| report.changed);
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(is_beaten, "the swapper is too slow to prove anything");
        println!("{changed} changes in {TRIES} tries, none outside");
    });
    assert_eq!(outside(), before);
}
