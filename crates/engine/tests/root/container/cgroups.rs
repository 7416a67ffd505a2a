//! Cgroups of containers: shared ones, and nested ones.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use oci_hooks_host::cgroup;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::threads::repeat_during;
use rustix::fs::{Mode, OFlags, mkdirat, openat};

use crate::container::setup::{spec, with_each_engine};

/// A thread keeps removing the parent cgroup of all containers, as the end of every container does.
#[test]
fn containers_start_while_others_remove_empty_cgroups() {
    with_each_engine(|engine, image| {
        let remove = || {
            cgroup::remove_if_empty("/oci-hooks");
            // Gives the other threads a turn.
            thread::park_timeout(Duration::from_micros(200));
        };
        repeat_during(remove, || {
            for _ in 0..10 {
                let record = engine.prepare(spec(image, "sleep 1000")).unwrap().start().unwrap();
                engine.remove(&record).unwrap();
            }
        });
    });
}

/// Privileged containers may nest cgroups below theirs.
#[test]
fn cgroups_below_the_longest_path_are_killed_and_removed() {
    program::require_root();
    // The mount point of version 2, or hierarchies of versions 1 and 2 in it.
    let hierarchies = ["", "pids", "unified"].map(|name| Path::new("/sys/fs/cgroup").join(name));
    for hierarchy in hierarchies.iter().filter(|path| path.join("cgroup.procs").exists()) {
        for (depth, length) in [(20, 250), (1000, 1)] {
            let name = program::unique_name();
            let top = hierarchy.join(&name);
            fs::create_dir(&top).unwrap();
            let part = "x".repeat(length);
            let mut deepest = OwnedFd::from(File::open(&top).unwrap());
            let open = |at: &OwnedFd, name: &str, flags| {
                openat(at, name, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
            };
            for _ in 0..depth {
                mkdirat(&deepest, &*part, Mode::RWXU).unwrap();
                deepest = open(&deepest, &part, OFlags::DIRECTORY);
            }
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            let processes = open(&deepest, "cgroup.procs", OFlags::WRONLY);
            rustix::io::write(processes, child.id().to_string().as_bytes()).unwrap();
            assert!(cgroup::kill(&name), "{depth}, {}", hierarchy.display());
            assert_eq!(child.wait().unwrap().signal(), Some(9));
            assert!(cgroup::remove(&name), "{depth}, {}", hierarchy.display());
            assert!(!top.exists());
        }
    }
}
