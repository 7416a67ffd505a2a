//! Lending and giving back as root of a user namespace, where most users of the host are nobody.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rustix::process::geteuid;

use super::super::super::lend::{Lend, lend};
use super::super::super::userns::{IdRange, Mapping};
use super::super::*;

/// The runner's user, and the first of the ids that it has besides.
const RUNNER: u32 = 12_345;
const FIRST: u32 = 0x6000_0000;
const COUNT: u32 = 65_536;
/// Users and groups of the host that the namespace does not know.
const HOST: u32 = 54_321;

/// Where the directory of the test is told to the process in the namespace.
const MARK: &str = "OCI_HOOKS_TEST_IN_USER_NAMESPACE";

fn ids() -> GiveBack {
    GiveBack { owner: (0, 0), private: 1..COUNT + 1, has_lists: true }
}

/// Prepares a directory in memory as root, calls the body as root of a user namespace of the runner, in a
/// process of its own, and then looks at what is there. Only root can map so many ids.
fn play(test: &str, prepare: fn(&Path), body: fn(&Path), check: fn(&Path)) {
    if let Some(dir) = std::env::var_os(MARK) {
        return body(Path::new(&dir));
    }
    if !geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    own(dir.path(), RUNNER, RUNNER);
    prepare(dir.path());
    let ranges = || {
        let range = |disk, view, count| IdRange { disk, view, count };
        vec![range(0, RUNNER, 1), range(1, FIRST, COUNT)]
    };
    let namespace = Mapping { uids: ranges(), gids: ranges() }.namespace().unwrap();
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

fn own(path: &Path, uid: u32, gid: u32) {
    lchown(path, Some(uid), Some(gid)).unwrap();
}

fn owner(path: &Path) -> (u32, u32) {
    let found = path.symlink_metadata().unwrap();
    (found.uid(), found.gid())
}

/// Makes a file or, with a slash at the end of its name, a directory.
fn make(dir: &Path, name: &str, mode: u32, (uid, gid): (u32, u32)) {
    let path = dir.join(name);
    match name.ends_with('/') {
        true => fs::create_dir(&path).unwrap(),
        false => drop(File::create(&path).unwrap()),
    }
    own(&path, uid, gid);
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

fn run(dir: &Path) -> Report {
    let report = give_back(File::open(dir).unwrap().as_fd(), dir, &ids()).unwrap();
    assert_eq!(report.problems.count, 0, "{:?}", report.problems);
    report
}

#[test]
fn what_belongs_to_ids_of_the_runner_is_given_and_what_belongs_to_others_stays() {
    play(
        "sys::give_back::tests::in_user_namespace::\
         what_belongs_to_ids_of_the_runner_is_given_and_what_belongs_to_others_stays",
        |dir| {
            make(dir, "first", 0o600, (FIRST, FIRST));
            make(dir, "nobody", 0o600, (FIRST + 65_533, FIRST + 65_533));
            make(dir, "last", 0o600, (FIRST + COUNT - 1, RUNNER));
            make(dir, "group", 0o640, (RUNNER, FIRST + 5));
            make(dir, "host-group", 0o640, (RUNNER, HOST));
            make(dir, "root", 0o600, (0, 0));
            make(dir, "host", 0o4755, (HOST, HOST));
            make(dir, "lost+found/", 0o700, (0, 0));
            make(dir, "host-dir/", 0o700, (HOST, HOST));
            // What a container makes in a directory of a group of the host that hands the group on.
            make(dir, "set-group/", 0o2775, (RUNNER, HOST));
            make(dir, "set-group/file", 0o600, (FIRST + 999, HOST));
            make(dir, "set-group/dir/", 0o2700, (FIRST + 999, HOST));
            make(dir, "set-group/dir/file", 0o4755, (FIRST + 999, HOST));
        },
        |dir| {
            assert_eq!(run(dir).changed, 7);
            assert_eq!(run(dir).changed, 0);
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
fn what_is_lent_to_a_container_is_given_back_in_microseconds_a_file() {
    const FILES: u64 = 20_000;
    play(
        "sys::give_back::tests::in_user_namespace::\
         what_is_lent_to_a_container_is_given_back_in_microseconds_a_file",
        |dir| {
            for parent in 0..FILES / 100 {
                make(dir, &format!("{parent}/"), 0o755, (RUNNER, RUNNER));
                for name in 1..100 {
                    make(dir, &format!("{parent}/{name}"), 0o644, (RUNNER, RUNNER));
                }
            }
        },
        |dir| {
            let timed = |what: &str, files: u64, work: &dyn Fn() -> u64| {
                let start = Instant::now();
                assert_eq!(work(), files, "{what}");
                println!("{files} files: {what} in {:?}", start.elapsed());
            };
            let to = Lend { uid: 1000, owner: 0, private: ids().private };
            timed("lent", FILES + 1, &|| {
                let report = lend(File::open(dir).unwrap().as_fd(), dir, &to).unwrap();
                assert_eq!(report.problems.count, 0, "{:?}", report.problems);
                report.lent
            });
            timed("given back, with lists", FILES + 1, &|| run(dir).changed);
            for entry in walkdir::WalkDir::new(dir).min_depth(1) {
                own(entry.unwrap().path(), 1000, 1000);
            }
            timed("given back, with owners", FILES, &|| run(dir).changed);
            timed("looked at", 0, &|| run(dir).changed);
        },
        |dir| {
            for entry in walkdir::WalkDir::new(dir) {
                let found = entry.unwrap().metadata().unwrap();
                assert_eq!((found.uid(), found.gid()), (RUNNER, RUNNER));
                assert_eq!(found.mode() & 0o7022, 0);
            }
        },
    );
}
