use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

use oci_hooks_files::descent::DIRECTORY;
use oci_hooks_testsupport::descriptors::with_few_descriptors;
use rustix::fd::OwnedFd;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags, linkat, makedev, mkdirat, mknodat};
use rustix::process::geteuid;

use super::super::mount::{self, run_in_new_namespace};
use super::*;

fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

#[test]
fn removing_a_tree_spares_its_link_targets() {
    let dir = memory();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("tree/a/b/c")).unwrap();
    fs::create_dir(at("outside")).unwrap();
    fs::write(at("outside/kept"), "").unwrap();
    symlink("../../outside", at("tree/a/link")).unwrap();
    symlink("outside", at("link")).unwrap();
    for name in ["tree", "link", "nothing", "nothing/at/all"] {
        remove_tree(&at(name)).unwrap();
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["outside"]);
    assert!(at("outside/kept").exists());
}

#[test]
fn all_kinds_of_files_and_names_are_removed() {
    let dir = memory();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("closed/below")).unwrap();
    fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    for name in [b"\n".to_vec(), b"\xff\xfe".to_vec(), vec![b'x'; 255], b"-rf *".to_vec()] {
        fs::create_dir(tree.join(OsString::from_vec(name))).unwrap();
    }
    fs::write(tree.join("one"), "x").unwrap();
    fs::hard_link(tree.join("one"), tree.join("two")).unwrap();
    File::create(tree.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    drop(UnixListener::bind(tree.join("socket")).unwrap());
    mknodat(CWD, tree.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    if geteuid().is_root() {
        let device = makedev(1, 5);
        mknodat(CWD, tree.join("zero"), FileType::CharacterDevice, Mode::RWXU, device).unwrap();
    } else {
        fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    }
    remove_tree(&tree).unwrap();
    assert!(!tree.exists());
}

/// Each level has a name of maximum length: the paths are longer than any system call accepts.
#[test]
fn two_thousand_levels_are_removed_with_few_descriptors() {
    const LEVELS: usize = 2000;
    let test = "removal::tests::two_thousand_levels_are_removed_with_few_descriptors";
    with_few_descriptors(test, || {
        let dir = memory();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let mut here = OwnedFd::from(File::open(&tree).unwrap());
        let name = "n".repeat(255);
        for _ in 0..LEVELS {
            mkdirat(&here, &*name, Mode::RWXU).unwrap();
            here = openat(&here, &*name, DIRECTORY, Mode::empty()).unwrap();
        }
        drop(here);
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    });
}

/// More names of directories than the limit of pending names; the first, middle and last ones cannot be removed.
#[test]
fn only_unremovable_files_remain_and_are_named() {
    if !geteuid().is_root() {
        return;
    }
    let dir = memory();
    let tree = dir.path().join("tree");
    let kept = ["000", "100", "299"].map(|name| tree.join(name).join("a/b/mounted"));
    for number in 0..300 {
        let below = tree.join(format!("{number:03}")).join("a/b");
        fs::create_dir_all(below.join("n".repeat(255))).unwrap();
        fs::write(below.join("file"), "").unwrap();
    }
    run_in_new_namespace(|| {
        for mounted in &kept {
            fs::create_dir(mounted).unwrap();
            mount::mount_tmpfs(mounted, 0o700, None)?;
        }
        let error = remove_tree(&tree).unwrap_err();
        assert!(kept.contains(&error.path), "{error}");
        assert_eq!(error.source.raw_os_error(), Some(Errno::XDEV.raw_os_error()));
        let names = |path: &Path| fs::read_dir(path).unwrap().count();
        assert_eq!(names(&tree), 3);
        for mounted in &kept {
            assert_eq!(names(mounted.parent().unwrap()), 1);
        }
        Ok::<_, PathError>(())
    })
    .unwrap();
    // In this mount namespace the path is no mount point.
    remove_tree(&tree).unwrap();
    assert!(!tree.exists());
}

#[test]
fn immutable_files_are_removed_but_not_from_immutable_directories() {
    if !geteuid().is_root() {
        return;
    }
    let dir = memory();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("sealed/empty")).unwrap();
    fs::create_dir_all(tree.join("only-sealed")).unwrap();
    for name in ["sealed/file", "log", "sealed/plain"] {
        fs::write(tree.join(name), "").unwrap();
    }
    let seal = |name: &str, flag: IFlags| {
        let file = File::open(dir.path().join(name)).unwrap();
        ioctl_setflags(&file, ioctl_getflags(&file).unwrap() | flag).unwrap();
    };
    for name in ["sealed/empty", "sealed/file", "sealed", "only-sealed", ""] {
        seal(&format!("tree/{name}"), IFlags::IMMUTABLE);
    }
    for name in ["tree/log", ""] {
        seal(name, IFlags::APPEND);
    }
    // The parent directory may not be changed.
    let error = remove_tree(&tree).unwrap_err();
    assert_eq!((error.path, error.source.kind()), (tree.clone(), io::ErrorKind::PermissionDenied));
    assert_eq!(fs::read_dir(&tree).unwrap().count(), 0);
    let top = File::open(dir.path()).unwrap();
    let flags = ioctl_getflags(&top).unwrap();
    assert!(flags.contains(IFlags::APPEND));
    ioctl_setflags(&top, flags - IFlags::APPEND).unwrap();
    remove_tree(&tree).unwrap();
    assert!(!tree.exists());
}

/// Number of directories, and of the files and the subdirectories in each.
const WIDE: (usize, usize) = (100, 5_000);

#[test]
fn million_entries_are_removed_with_little_memory() {
    let test = "removal::tests::million_entries_are_removed_with_little_memory";
    with_few_descriptors(test, || {
        let dir = memory();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let make = |from: usize| {
            for top in (from..WIDE.0).step_by(2) {
                let top = tree.join(top.to_string());
                fs::create_dir(&top).unwrap();
                let here = OwnedFd::from(File::open(&top).unwrap());
                mknodat(&here, "0", FileType::RegularFile, Mode::RWXU, 0).unwrap();
                for number in 1..=WIDE.1 {
                    linkat(&here, "0", &here, format!("f{number}"), AtFlags::empty()).unwrap();
                    mkdirat(&here, format!("d{number}"), Mode::RWXU).unwrap();
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| make(0));
            make(1);
        });
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
        let kib: u32 = peak.trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 64 << 10, "it took {peak}");
    });
}

/// Another process with an open directory creates entries in it as fast as possible, until the directory is gone.
#[test]
fn concurrent_creation_of_entries_does_not_block_removal() {
    type MakeEntry = fn(&OwnedFd, &str) -> rustix::io::Result<()>;
    let directory: MakeEntry = |here, name| mkdirat(here, name, Mode::RWXU);
    let file: MakeEntry = |here, name| mknodat(here, name, FileType::RegularFile, Mode::RWXU, 0);
    for make in [directory, file] {
        let dir = memory();
        let tree = dir.path().join("tree");
        for name in ["a", "b", "c"] {
            fs::create_dir_all(tree.join(name)).unwrap();
        }
        let here = OwnedFd::from(File::open(tree.join("b")).unwrap());
        std::thread::scope(|scope| {
            let (stop, stopped) = mpsc::channel::<()>();
            let (made, is_made) = mpsc::channel();
            scope.spawn(move || {
                let going_on = || stopped.try_recv() == Err(mpsc::TryRecvError::Empty);
                for number in 0.. {
                    if !going_on() || make(&here, &number.to_string()).is_err() {
                        break;
                    }
                    if number == 1000 {
                        let _ = made.send(());
                    }
                }
            });
            is_made.recv().unwrap();
            let removed = remove_tree_until(&tree, Instant::now() + Duration::from_secs(1));
            // Either the directory was empty for a moment and was removed, or the removal gave up.
            if let Err(error) = removed {
                assert_eq!(error.source.raw_os_error(), Some(Errno::TIMEDOUT.raw_os_error()));
            }
            drop(stop);
        });
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }
}
