use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::file_user::own_ids;

fn tree() -> (tempfile::TempDir, HostRoot) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    fs::create_dir_all(path.join("root/a")).unwrap();
    fs::create_dir(path.join("outside")).unwrap();
    symlink("../outside", path.join("root/link")).unwrap();
    let root = HostRoot::open_trusted(&path.join("root")).unwrap();
    (dir, root)
}

#[test]
fn opened_file_stays_the_same_after_renames() {
    let (dir, root) = tree();
    let path = dir.path().join("root/a");
    let opened = root.open(Path::new("a")).unwrap();
    assert!(opened.has_name(&path));
    fs::rename(&path, dir.path().join("root/b")).unwrap();
    symlink("../outside", &path).unwrap();
    assert!(!opened.has_name(&path));
    assert!(opened.has_name(&dir.path().join("root/b")));
    assert_eq!(opened, root.open(Path::new("b")).unwrap());
    root.open(Path::new("a")).unwrap_err();
}

#[test]
fn links_and_dots_are_rejected() {
    let (dir, root) = tree();
    for path in ["link", "link/x", "..", "a/../..", "/etc"] {
        root.open(Path::new(path)).unwrap_err();
        root.open_or_make_dir(Path::new(path), own_ids()).unwrap_err();
        root.read(Path::new(path)).unwrap_err();
        root.write(Path::new(path)).unwrap_err();
    }
    assert_eq!(fs::read_dir(dir.path().join("outside")).unwrap().count(), 0);
}

#[test]
fn missing_parent_directories_are_created() {
    let (dir, root) = tree();
    let made = root.open_or_make_dir(Path::new("x/y"), own_ids()).unwrap();
    assert!(made.is_dir() && made.has_name(&dir.path().join("root/x/y")));
    assert_eq!(made, root.open_or_make_dir(Path::new("x/y"), own_ids()).unwrap());
    assert!(root.open(Path::new("")).unwrap().is_same(root.dir()));
    assert!(root.read(Path::new("")).unwrap().metadata().unwrap().is_dir());
}

#[test]
fn only_a_created_subdirectory_changes_its_owner() {
    let (uid, _) = own_ids();
    if uid != 0 {
        // Only root can change owners.
        return;
    }
    let (dir, _root) = tree();
    let owner = |path: &str| {
        let found = fs::metadata(dir.path().join("root").join(path)).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&found) & 0o7777;
        (std::os::unix::fs::MetadataExt::uid(&found), mode)
    };
    let mode = |path: &str, mode| {
        let path = dir.path().join("root").join(path);
        rustix::fs::chmod(&path, Mode::from_raw_mode(mode)).unwrap();
    };
    mode("", 0o750);
    mode("a", 0o700);
    symlink("a", dir.path().join("root/inner")).unwrap();
    let root = HostRoot::open_trusted(&dir.path().join("root")).unwrap();
    root.dir().open_within(Path::new("a"), (12345, 12345)).unwrap();
    root.dir().open_within(Path::new("inner/new/sub"), (12345, 12345)).unwrap();
    assert_eq!((owner(""), owner("a")), ((0, 0o750), (0, 0o700)), "found there");
    assert_eq!(owner("a/new"), (12345, 0o750));
    assert_eq!(owner("a/new/sub"), (12345, 0o750));
    symlink("/missing", dir.path().join("root/dangling")).unwrap();
    root.dir().open_within(Path::new("dangling/x"), (12345, 12345)).unwrap_err();
}

#[test]
fn fifo_is_neither_waited_for_nor_written() {
    let (dir, root) = tree();
    rustix::fs::mkfifoat(CWD, dir.path().join("root/fifo"), Mode::RWXU).unwrap();
    root.write(Path::new("fifo")).unwrap_err();
    root.open(Path::new("fifo")).unwrap().reopen().unwrap_err();
}

#[test]
fn path_prefixes_are_compared_by_component() {
    let (_dir, root) = tree();
    let name = root.dir().name.to_path_buf();
    assert_eq!(root.strip_root(&name.join("a/b")), Some(Path::new("a/b")));
    assert_eq!(root.strip_root(&name.with_file_name("rootless")), None);
}
