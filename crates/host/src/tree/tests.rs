use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_testsupport::descriptors::with_few_descriptors;
use rustix::fs::{
    CWD, RenameFlags, Timespec, Timestamps, XattrFlags, chmodat, chownat, fsetxattr, renameat_with,
    utimensat,
};

use super::super::removal::remove_tree;
use super::attributes::owner;
use super::*;

fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
}

#[test]
fn copy_keeps_contents_modes_times_and_links() {
    let (from, to) = directories();
    let (from, to) = (from.path(), to.path());
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/b/file"), "text").unwrap();
    fs::hard_link(from.join("a/b/file"), from.join("second")).unwrap();
    symlink("/nowhere", from.join("link")).unwrap();
    fs::set_permissions(from.join("a/b/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(from.join("a"), fs::Permissions::from_mode(0o2770)).unwrap();
    fs::set_permissions(from, fs::Permissions::from_mode(0o711)).unwrap();
    let time = Timestamps {
        last_access: Timespec { tv_sec: 1, tv_nsec: 2 },
        last_modification: Timespec { tv_sec: 3, tv_nsec: 4 },
    };
    utimensat(CWD, from.join("a/b"), &time, AtFlags::empty()).unwrap();
    copy(from, to, CopyPurpose::Plain.into()).unwrap();

    assert_eq!(fs::read_to_string(to.join("a/b/file")).unwrap(), "text");
    let [file, second] = ["a/b/file", "second"].map(|name| fs::metadata(to.join(name)).unwrap());
    assert_eq!(file.ino(), second.ino());
    assert_eq!(file.mode() & 0o7777, 0o4751);
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/nowhere"));
    assert_eq!(fs::metadata(to.join("a")).unwrap().mode() & 0o7777, 0o2770);
    assert_eq!(fs::metadata(to).unwrap().mode() & 0o7777, 0o711);
    let copied = fs::metadata(to.join("a/b")).unwrap();
    assert_eq!((copied.mtime(), copied.mtime_nsec()), (3, 4));
}

#[test]
fn copy_keeps_extended_attributes() {
    let (from, to) = directories();
    fs::write(from.path().join("file"), "").unwrap();
    let file = File::open(from.path().join("file")).unwrap();
    fsetxattr(&file, c"user.note", b"kept", XattrFlags::empty()).unwrap();
    copy(from.path(), to.path(), CopyPurpose::Plain.into()).unwrap();
    let file = File::open(to.path().join("file")).unwrap();
    let mut value = [0; 8];
    let length = fgetxattr(&file, c"user.note", &mut value).unwrap();
    assert_eq!(&value[..length], b"kept");
}

#[test]
fn existing_links_are_not_followed() {
    let (from, to) = directories();
    let outside = tempfile::tempdir().unwrap();
    for name in ["dir", "file"] {
        symlink(outside.path(), to.path().join(name)).unwrap();
    }
    fs::create_dir(from.path().join("dir")).unwrap();
    fs::write(from.path().join("dir/inner"), "new").unwrap();
    fs::write(from.path().join("file"), "new").unwrap();
    copy(from.path(), to.path(), CopyPurpose::Layer.into()).unwrap();
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert!(to.path().join("dir").symlink_metadata().unwrap().is_dir());
    assert_eq!(fs::read_to_string(to.path().join("file")).unwrap(), "new");
}

#[test]
fn layer_replaces_files_of_the_same_name() {
    let (from, to) = directories();
    fs::create_dir_all(to.path().join("x/deep")).unwrap();
    fs::create_dir(to.path().join("kept")).unwrap();
    fs::write(to.path().join("kept/old"), "").unwrap();
    fs::write(from.path().join("x"), "").unwrap();
    fs::create_dir(from.path().join("kept")).unwrap();
    copy(from.path(), to.path(), CopyPurpose::Layer.into()).unwrap();
    assert!(to.path().join("x").is_file());
    assert!(to.path().join("kept/old").exists());
}

#[test]
fn error_names_the_file() {
    let (from, to) = directories();
    fs::create_dir(from.path().join("a")).unwrap();
    fs::write(from.path().join("a/file"), "").unwrap();
    let missing = to.path().join("missing");
    assert_eq!(
        copy(from.path(), &missing, CopyPurpose::Plain.into()).unwrap_err().to_string(),
        format!("cannot open {}", missing.display())
    );
}

#[test]
fn hard_linked_files_of_every_kind_are_copied_once() {
    let (from, to) = directories();
    let (from, to) = (from.path(), to.path());
    fs::create_dir(from.join("a")).unwrap();
    symlink("/nowhere", from.join("a/link")).unwrap();
    mknodat(CWD, from.join("a/fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    fs::write(from.join("a/file"), "text").unwrap();
    for name in ["link", "fifo", "file"] {
        fs::hard_link(from.join("a").join(name), from.join(name)).unwrap();
    }
    copy(from, to, CopyPurpose::Plain.into()).unwrap();
    for name in ["link", "fifo", "file"] {
        let [one, two] =
            [to.join(name), to.join("a").join(name)].map(|path| path.symlink_metadata().unwrap());
        assert_eq!((one.ino(), one.nlink()), (two.ino(), 2), "{name}");
    }
    assert_eq!(fs::metadata(to.join("fifo")).unwrap().mode() & 0o7777, 0o640);
}

#[test]
fn owners_in_the_range_are_shifted() {
    let (uid, gid) = crate::file_user::own_ids();
    let (from, to) = directories();
    fs::write(from.path().join("file"), "").unwrap();
    symlink("/nowhere", from.path().join("link")).unwrap();
    // Only root may give files away; without root, owners stay the same.
    let (ids, seen) = if uid == 0 { ((70_001, 70_002), (1, 2)) } else { ((uid, gid), (uid, gid)) };
    for path in [from.path().to_owned(), from.path().join("file"), from.path().join("link")] {
        std::os::unix::fs::lchown(&path, Some(ids.0), Some(ids.1)).unwrap();
    }
    let owners = Some(OwnerShift { from: 70_000, to: 0, count: 10 });
    let [source, target] = [&from, &to].map(|dir| File::open(dir.path()).unwrap());
    let options = CopyOptions { purpose: CopyPurpose::Plain, owners };
    let source = OpenDirectory { directory: source.as_fd(), path: from.path() };
    let target = OpenDirectory { directory: target.as_fd(), path: to.path() };
    copy_between(source, target, options).unwrap();
    for path in [to.path().to_owned(), to.path().join("file"), to.path().join("link")] {
        let made = path.symlink_metadata().unwrap();
        assert_eq!((made.uid(), made.gid()), seen, "{}", path.display());
    }
}

/// Number of tries of an attacker who swaps files.
const TRIES: usize = 10_000;
/// Time limit for the attack on operations by path, which succeeds within milliseconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Calls `swap` on another thread, again and again, until `work` has returned.
fn run_while_swapping<T>(swap: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also if the work panics, so that the other thread ends.
        let _end = StopOnDrop(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                swap();
            }
        });
        work()
    })
}

/// Returns whether the attacker wins one of the tries before the deadline.
fn is_beaten(mut one: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < DEADLINE {
        if one() {
            return true;
        }
    }
    false
}

#[test]
fn hard_link_is_not_created_to_a_replaced_file() {
    let (dir, outside) = directories();
    let top = dir.path();
    fs::create_dir(top.join("dir")).unwrap();
    fs::write(top.join("dir/file"), "ours").unwrap();
    fs::write(outside.path().join("file"), "secret").unwrap();
    symlink(outside.path(), top.join("other")).unwrap();
    let secret = fs::metadata(outside.path().join("file")).unwrap().ino();
    let fd = File::open(top).unwrap();
    let swap = || {
        renameat_with(&fd, "dir", &fd, "other", RenameFlags::EXCHANGE).unwrap();
    };
    let is_secret = || {
        let is_secret = fs::metadata(top.join("made")).is_ok_and(|made| made.ino() == secret);
        let _ = fs::remove_file(top.join("made"));
        is_secret
    };
    let mut links = HardLinks { top: fd.as_fd(), first: HashMap::new() };
    let source = fstat(File::open(top.join("dir/file")).unwrap()).unwrap();
    let first = FirstName { path: "dir/file".into(), id: id(&source) };
    links.first.insert(id(&source), first);
    run_while_swapping(swap, || {
        assert!(is_beaten(|| {
            let _ = linkat(&fd, "dir/file", &fd, "made", AtFlags::empty());
            is_secret()
        }));
        let mut made = 0;
        for _ in 0..TRIES {
            made += usize::from(links.link(&source, fd.as_fd(), c"made").unwrap());
            assert!(!is_secret());
        }
        println!("{made} of {TRIES} links were made, none to the secret");
    });
}

#[test]
fn mode_of_a_fifo_is_not_applied_to_a_replaced_file() {
    let (dir, outside) = directories();
    let (source, _) = directories();
    let top = dir.path();
    let secret = outside.path().join("file");
    fs::write(&secret, "").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    mknodat(CWD, source.path().join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0)
        .unwrap();
    let fifo = open(source.path().join("fifo"), PATH_ONLY, Mode::empty()).unwrap();
    let stat = fstat(&fifo).unwrap();
    let mode = Mode::from_raw_mode(0o606);
    let fd = File::open(top).unwrap();
    let swap = || {
        let _ = symlink(&secret, top.join("link"));
        let _ = fs::rename(top.join("link"), top.join("made"));
    };
    let is_changed = || fs::metadata(&secret).unwrap().mode() & 0o7777 != 0o600;
    let links = HardLinks { top: fd.as_fd(), first: HashMap::new() };
    let files = FileCopier { links, options: CopyPurpose::Plain.into() };
    run_while_swapping(swap, || {
        assert!(is_beaten(|| {
            let _ = fs::remove_file(top.join("made"));
            let made = mknodat(&fd, c"made", FileType::Fifo, mode, 0);
            let owner = owner(&stat, None);
            let _ = chownat(&fd, c"made", owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW);
            let _ = made.and_then(|()| chmodat(&fd, c"made", mode, AtFlags::empty()));
            is_changed()
        }));
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let mut made = 0;
        for _ in 0..TRIES {
            let _ = fs::remove_file(top.join("made"));
            made += usize::from(files.node(&fifo, &stat, fd.as_fd(), c"made").is_ok());
        }
        assert!(!is_changed());
        println!("{made} of {TRIES} FIFOs were made, and the secret's mode is as it was");
    });
}

#[test]
fn source_that_becomes_a_fifo_is_not_waited_for() {
    let (from, to) = directories();
    fs::write(from.path().join("file"), "text").unwrap();
    mknodat(CWD, from.path().join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    let fd = File::open(from.path()).unwrap();
    let swap = || {
        renameat_with(&fd, "file", &fd, "fifo", RenameFlags::EXCHANGE).unwrap();
    };
    run_while_swapping(swap, || {
        for _ in 0..TRIES / 20 {
            copy(from.path(), to.path(), CopyPurpose::Plain.into()).unwrap();
        }
    });
}

/// Deeper than the limits of descriptors and path length, and with more subdirectories in one directory than the limit
/// of pending names.
#[test]
fn deep_and_wide_trees_are_copied_with_few_descriptors() {
    const LEVELS: usize = 2000;
    let test = "tree::tests::deep_and_wide_trees_are_copied_with_few_descriptors";
    with_few_descriptors(test, || {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        for number in 0..2000 {
            fs::create_dir_all(from.join(format!("{number:0200}/below"))).unwrap();
        }
        fs::create_dir(&to).unwrap();
        let mut here = OwnedFd::from(File::open(&from).unwrap());
        for _ in 0..LEVELS {
            mkdirat(&here, "deep", Mode::RWXU).unwrap();
            here = openat(&here, "deep", DIRECTORY, Mode::empty()).unwrap();
        }
        for name in [c"one", c"two"] {
            mknodat(&here, name, FileType::RegularFile, Mode::from_raw_mode(0o640), 0).unwrap();
        }
        drop(here);
        copy(&from, &to, CopyPurpose::Plain.into()).unwrap();
        assert_eq!(fs::read_dir(&to).unwrap().count(), 2001);
        assert!(to.join(format!("{:0200}/below", 1999)).is_dir());
        let mut here = OwnedFd::from(File::open(&to).unwrap());
        for _ in 0..LEVELS {
            here = openat(&here, "deep", DIRECTORY, Mode::empty()).unwrap();
        }
        let copied = openat(&here, c"two", OFlags::PATH, Mode::empty()).unwrap();
        assert_eq!(fstat(&copied).unwrap().st_mode & 0o777, 0o640);
        drop((here, copied));
        for path in [&from, &to] {
            remove_tree(path).unwrap();
        }
    });
}
