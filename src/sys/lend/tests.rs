use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::geteuid;

use super::super::give_back::{GiveBack, give_back};
use super::*;

/// The runner's user.
const OWNER: u32 = 12_345;
/// The user of a container, and one of another.
const USER: u32 = 0x6000_0000;
const OTHER: u32 = USER + 1;

fn to(uid: u32) -> Lend {
    Lend { uid, owner: OWNER, private: USER..USER + 65_536 }
}

/// Makes a directory of the owner in memory. None for those who are not root: only root makes files that
/// are others'.
fn directory() -> Option<tempfile::TempDir> {
    if !geteuid().is_root() {
        return None;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(dir.path(), Some(OWNER), Some(OWNER)).unwrap();
    Some(dir)
}

/// Runs a script as a user in a directory, and returns whether it succeeds.
fn can(dir: &Path, uid: u32, script: &str) -> bool {
    let mut shell = Command::new("sh");
    let shell = shell.args(["-euc", script]).current_dir(dir).uid(uid).gid(uid);
    shell.output().unwrap().status.success()
}

fn lent(dir: &Path, uid: u32) -> u64 {
    let report = lend(File::open(dir).unwrap().as_fd(), dir, &to(uid)).unwrap();
    assert_eq!(report.problems.count, 0, "{:?}", report.problems);
    report.lent
}

fn given_back(dir: &Path) -> u64 {
    let ids = GiveBack { owner: (OWNER, OWNER), private: to(USER).private, has_lists: true };
    let report = give_back(File::open(dir).unwrap().as_fd(), dir, &ids).unwrap();
    assert_eq!(report.problems.count, 0, "{:?}", report.problems);
    report.changed
}

/// Returns mode and owner of all that is in a directory, and which lists it has.
fn shown(dir: &Path) -> Vec<(String, u32, u32, u32, bool)> {
    let mut shown = Vec::new();
    for entry in walkdir::WalkDir::new(dir).sort_by_file_name() {
        let entry = entry.unwrap();
        let found = entry.metadata().unwrap();
        let has = |name| {
            !entry.path_is_symlink() && getxattr(entry.path(), name, &mut [0; 4096][..]).is_ok()
        };
        let name = entry.path().strip_prefix(dir).unwrap().to_string_lossy().into_owned();
        shown.push((name, found.mode(), found.uid(), found.gid(), has(ACCESS) || has(DEFAULT)));
    }
    shown
}

#[test]
fn both_can_use_what_either_makes_and_nothing_of_it_is_left() {
    let Some(dir) = directory() else { return };
    let dir = dir.path();
    let make = "mkdir -p src/lib; echo a > src/file; chmod 600 src/file; echo '#!/bin/sh' > run; \
                chmod 755 run; echo a > object; chmod 444 object; ln -s /etc/passwd link; mkfifo fifo";
    assert!(can(dir, OWNER, make));
    let before = shown(dir);
    assert!(!can(dir, USER, "echo b > src/new"));
    // Directories, files; neither link nor FIFO.
    assert_eq!(lent(dir, USER), 6);
    assert!(can(
        dir,
        USER,
        "echo b >> src/file; test -x run; echo b > src/new; mkdir -p made/by/me"
    ));
    assert!(!can(dir, USER, "echo b >> object"));
    assert!(!can(dir, OTHER, "echo b > src/other"));
    assert!(can(dir, OWNER, "echo c >> src/new; echo c > made/by/file; umask 077; echo c > late"));
    assert!(can(dir, USER, "echo d >> made/by/file; rm -r made; rm src/new; echo d > late"));
    assert!(can(dir, OWNER, "rm late"));
    assert!(given_back(dir) > 0);
    assert_eq!(shown(dir), before);
    assert_eq!(given_back(dir), 0);
}

#[test]
fn what_a_job_leaves_is_the_runners_alone() {
    let Some(dir) = directory() else { return };
    let dir = dir.path();
    lent(dir, USER);
    lent(dir, OTHER);
    let make = "umask 022; mkdir -p a/b; echo a > a/file; mkdir -m 700 closed; echo a > closed/file; \
                cp /bin/true setuid; chmod 6755 setuid; mkfifo fifo";
    assert!(can(dir, USER, make));
    assert!(can(dir, OTHER, "echo b > a/b/other; echo b >> a/file; ! ls closed"));
    // The one who may say whom it belongs to says so of all.
    chown(dir.join("a/b/other"), Some(USER + 33), Some(USER + 33)).unwrap();
    given_back(dir);
    for (name, mode, uid, gid, has_list) in shown(dir) {
        assert_eq!((uid, gid, has_list), (OWNER, OWNER, false), "{name}");
        assert_eq!(mode & 0o6022, 0, "{name} is {mode:o}");
    }
    assert!(!can(dir, USER, "echo b > a/file"));
    assert!(can(dir, OWNER, "rm -r a closed setuid"));
}

#[test]
fn files_of_others_and_what_links_lead_to_are_not_lent() {
    let (Some(dir), Some(outside)) = (directory(), directory()) else { return };
    let (dir, outside) = (dir.path(), outside.path());
    fs::write(outside.join("file"), "").unwrap();
    chown(outside.join("file"), Some(OWNER), None).unwrap();
    fs::write(dir.join("root"), "").unwrap();
    symlink(outside, dir.join("directory")).unwrap();
    symlink(outside.join("file"), dir.join("file")).unwrap();
    let before = shown(outside);
    assert_eq!(lent(dir, USER), 1);
    assert_eq!(shown(outside), before);
    assert!(getxattr(dir.join("root"), ACCESS, &mut [0; 64][..]).is_err());
}

#[test]
fn lists_of_administrators_stay() {
    let Some(dir) = directory() else { return };
    let dir = dir.path();
    assert!(can(dir, OWNER, "mkdir shared; echo a > shared/file"));
    let mut list = Acl::of_mode(0o755);
    list.grant(54_321, 5);
    for name in [ACCESS, DEFAULT] {
        setxattr(dir.join("shared"), name, &list.to_attribute(), XattrFlags::empty()).unwrap();
    }
    lent(dir, USER);
    assert!(can(dir, USER, "echo a > shared/new; echo a >> shared/file"));
    given_back(dir);
    for name in [ACCESS, DEFAULT] {
        let mut buffer = [0; 256];
        let length = getxattr(dir.join("shared"), name, &mut buffer[..]).unwrap();
        assert_eq!(Acl::parse(&buffer[..length]), Some(list.clone()), "{name:?}");
    }
}

#[test]
fn a_file_that_was_made_with_a_smaller_mode_is_lent_too() {
    let Some(dir) = directory() else { return };
    let dir = dir.path();
    chown(dir, Some(geteuid().as_raw()), None).unwrap();
    let to = Lend { owner: geteuid().as_raw(), ..to(USER) };
    lend(File::open(dir).unwrap().as_fd(), dir, &to).unwrap();
    for (name, owner) in [("own", 0), ("other", OWNER)] {
        File::create(dir.join(name)).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o644)).unwrap();
        chown(dir.join(name), Some(owner), None).unwrap();
        assert!(!can(dir, USER, &format!("echo a > {name}")));
        lend_made(File::open(dir.join(name)).unwrap().as_fd()).unwrap();
    }
    assert!(can(dir, USER, "echo a > own"));
    assert!(!can(dir, USER, "echo a > other"));
    assert!(!can(dir, OTHER, "echo a > own"));
    // Nobody is named in its list, and its group gets nothing.
    let plain = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    fs::set_permissions(plain.path(), fs::Permissions::from_mode(0o644)).unwrap();
    lend_made(plain.as_file().as_fd()).unwrap();
    assert_eq!(plain.path().metadata().unwrap().mode() & 0o777, 0o644);
}

#[test]
fn a_file_system_without_lists_is_named() {
    if !geteuid().is_root() {
        return;
    }
    let path = Path::new("/proc/self");
    let error = lend(File::open(path).unwrap().as_fd(), path, &to(USER)).unwrap_err();
    let text = crate::sys::error::chain(&error);
    assert!(text.contains("/proc/self") && text.contains("access control lists"), "{text}");
}
