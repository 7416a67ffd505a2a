//! Removing directory trees on tmpfs, compared with `rm -rf`.
//!
//! `cargo bench -p oci-hooks-host --bench removal`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use oci_hooks_host::removal::remove_tree;
use oci_hooks_testsupport::measure::median;
use rustix::fs::{Mode, OFlags, mkdirat, openat};

const ROUNDS: usize = 7;

fn main() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    for (name, make) in [
        ("100 000 files in one directory", create_flat as fn(&Path)),
        ("100 000 files in 10 000 directories", create_broad),
        ("100 000 directories in each other", create_deep),
    ] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(measure(&tree, make, |tree| {
                assert!(Command::new("rm").arg("-rf").arg(tree).status().unwrap().success());
            }));
            ours.push(measure(&tree, make, |tree| remove_tree(tree).unwrap()));
        }
        let (ours, theirs) = (median(ours.into_iter()), median(theirs.into_iter()));
        println!("{name}: rm -rf {theirs:?}, ours {ours:?}");
    }
}

fn measure(tree: &Path, make: fn(&Path), remove: impl FnOnce(&Path)) -> Duration {
    fs::create_dir(tree).unwrap();
    make(tree);
    let start = Instant::now();
    remove(tree);
    start.elapsed()
}

fn create_flat(tree: &Path) {
    for number in 0..100_000 {
        File::create(tree.join(number.to_string())).unwrap();
    }
}

fn create_broad(tree: &Path) {
    for number in 0..10_000 {
        let below = tree.join(format!("{}/{number}", number % 100));
        fs::create_dir_all(&below).unwrap();
        for file in 0..10 {
            File::create(below.join(file.to_string())).unwrap();
        }
    }
}

fn create_deep(tree: &Path) {
    let mut here = rustix::fd::OwnedFd::from(File::open(tree).unwrap());
    for _ in 0..100_000 {
        mkdirat(&here, "d", Mode::RWXU).unwrap();
        here = openat(&here, "d", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    }
}
