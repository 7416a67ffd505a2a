use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::sys::caller::{Caller, own_ids};
use crate::sys::userns::PrivateIds;

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
fn what_was_opened_stays_what_it_was() {
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
fn links_and_ways_out_are_refused() {
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
fn directories_are_made_with_those_above_them() {
    let (dir, root) = tree();
    let made = root.open_or_make_dir(Path::new("x/y"), own_ids()).unwrap();
    assert!(made.is_dir() && made.has_name(&dir.path().join("root/x/y")));
    assert_eq!(made, root.open_or_make_dir(Path::new("x/y"), own_ids()).unwrap());
    assert!(root.open(Path::new("")).unwrap().is_same(root.dir()));
    assert!(root.read(Path::new("")).unwrap().metadata().unwrap().is_dir());
}

#[test]
fn a_subdirectory_is_given_to_somebody_only_where_it_was_made() {
    let (uid, _) = own_ids();
    if uid != 0 {
        // Only root gives anything to anybody.
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
    root.dir().within(Path::new("a"), (12345, 12345)).unwrap();
    root.dir().within(Path::new("inner/new/sub"), (12345, 12345)).unwrap();
    assert_eq!((owner(""), owner("a")), ((0, 0o750), (0, 0o700)), "found there");
    assert_eq!(owner("a/new"), (12345, 0o750));
    assert_eq!(owner("a/new/sub"), (12345, 0o750));
    symlink("/missing", dir.path().join("root/dangling")).unwrap();
    root.dir().within(Path::new("dangling/x"), (12345, 12345)).unwrap_err();
}

#[test]
fn who_asks_has_their_own_directories_and_shares_those_of_root() {
    let (uid, gid) = own_ids();
    if uid != 0 {
        // Only root may act as somebody.
        return;
    }
    let (dir, _root) = tree();
    let top = dir.path().canonicalize().unwrap();
    rustix::fs::chmod(&top, Mode::from_raw_mode(0o755)).unwrap();
    let caller = Caller { uid: 12345, gid: 12345, groups: Vec::new() };
    let own = top.join("root/a");
    std::os::unix::fs::chown(&own, Some(12345), Some(12345)).unwrap();
    HostRoot::open_as(&own, &caller).unwrap();
    HostRoot::open_as(&top.join("root"), &caller).unwrap_err();
    let shared = HostRoot::open_shared_as(&top.join("root"), &caller).unwrap();
    shared.write(Path::new("made")).unwrap_err();
    assert!(shared.subdirectory(Path::new("a")).unwrap().write(Path::new("made")).is_ok());
    std::os::unix::fs::chown(&own, Some(12346), Some(gid)).unwrap();
    for path in ["root/a", "root/link", "missing"] {
        HostRoot::open_shared_as(&top.join(path), &caller).unwrap_err();
    }
}

/// Containers give directories of their runner to users that the host does not have.
#[test]
fn what_a_users_containers_gave_away_is_used_beneath_their_own_directory_alone() {
    if own_ids().0 != 0 {
        // Only root may act as somebody.
        return;
    }
    let (dir, _root) = tree();
    let top = dir.path().canonicalize().unwrap();
    let caller = Caller { uid: 12345, gid: 12345, groups: Vec::new() };
    let give = |name: &str, uid| {
        std::os::unix::fs::chown(top.join(name), Some(uid), None).unwrap();
    };
    rustix::fs::chmod(&top, Mode::from_raw_mode(0o755)).unwrap();
    give("root/a", PrivateIds::ALL.start + 7);
    // Of a cache that users share it may be another one's.
    let shared = HostRoot::open_shared_as(&top.join("root"), &caller).unwrap();
    shared.open(Path::new("a")).unwrap_err();
    // And so may be one that nothing of theirs leads to.
    HostRoot::open_as(&top.join("root/a"), &caller).unwrap_err();
    give("root", 12345);
    let own = HostRoot::open_as(&top.join("root"), &caller).unwrap();
    own.open(Path::new("a")).unwrap();
    own.subdirectory(Path::new("a")).unwrap();
    for other in [12346, PrivateIds::ALL.start - 1, PrivateIds::ALL.end] {
        give("root/a", other);
        own.open(Path::new("a")).unwrap_err();
    }
}

#[test]
fn a_fifo_is_neither_waited_for_nor_written_to() {
    let (dir, root) = tree();
    rustix::fs::mkfifoat(CWD, dir.path().join("root/fifo"), Mode::RWXU).unwrap();
    root.write(Path::new("fifo")).unwrap_err();
    root.open(Path::new("fifo")).unwrap().reopen().unwrap_err();
}

#[test]
fn names_of_the_directory_are_compared_by_their_parts() {
    let (_dir, root) = tree();
    let name = root.dir().name.to_path_buf();
    assert_eq!(root.relative(&name.join("a/b")), Some(Path::new("a/b")));
    assert_eq!(root.relative(&name.with_file_name("rootless")), None);
}
