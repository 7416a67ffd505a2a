//! Many instances, some concurrently: no resource leaks.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::leftovers::{
    InstalledProgram as _, LeftoverSnapshot, assert_no_cgroups, containers,
};
use serde_json::json;

use crate::setup::{GarmFixture, with_each_runtime};

const INSTANCES: usize = 100;

const AT_ONCE: usize = 10;

#[test]
fn two_hundred_instances_ten_at_a_time_leave_nothing() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let (disk, namespaces) = (disk(world), namespaces(world));
        let seen = Mutex::new(BTreeSet::new());
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= INSTANCES {
                            break;
                        }
                        run_instance(world, number);
                        seen.lock().unwrap().extend(containers(&world.installation));
                    }
                });
            }
        });
        before.check(&world.installation, "the soak");
        assert_eq!(self::namespaces(world), namespaces);
        let seen: Vec<_> = seen.into_inner().unwrap().into_iter().collect();
        assert!(!seen.is_empty());
        assert_no_cgroups(&seen);
        let now = self::disk(world);
        assert!(now <= disk + (1 << 20), "{disk} bytes have become {now}");
    });
}

/// Runs one instance, and deletes it during or after its job.
fn run_instance(world: &GarmFixture<'_>, number: usize) {
    let name = format!("soak-{number}");
    match number % 3 {
        0 => world.create(&name, "sleep 1000", json!({})),
        _ => world.create(&name, "dd if=/dev/zero of=/tmp/file bs=1M count=2", json!({})),
    };
    if number % 3 == 1 {
        world.provider().wait_for(&name, AnswerStatus::Stopped);
    }
    world.provider().delete(&name);
}

/// Returns the disk usage, without logs and locks.
fn disk(world: &GarmFixture<'_>) -> u64 {
    let (run, store) = (world.installation.run_directory(), world.installation.store());
    let du = world.host().shell(&format!(
        "du --summarize --bytes --total --one-file-system --exclude='*.lock' {} {} | tail -n 1",
        run.display(),
        store.display()
    ));
    du.split_whitespace().next().and_then(|word| word.parse().ok()).expect("du says a number")
}

/// Returns the number of network namespaces of the host's processes, and of pinned ones.
fn namespaces(world: &GarmFixture<'_>) -> usize {
    let pids: Vec<_> = world.host().processes().iter().map(|process| process.pid).collect();
    let of_processes: BTreeSet<_> = world.host().enter(|| {
        let links = pids.iter().map(|pid| fs::read_link(format!("/proc/{pid}/ns/net")));
        links.flatten().collect()
    });
    let kept = world.host().mounts().iter().filter(|line| line.contains(" - nsfs ")).count();
    of_processes.len() + kept
}
