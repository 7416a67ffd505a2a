//! `prune`, on hosts whose GARM no longer deletes instances.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::leftovers::{LeftoverSnapshot, containers};
use oci_hooks_testsupport::program;
use serde_json::json;

use crate::setup::{ENDLESS, with_each_runtime};

#[test]
fn prune_removes_incomplete_instances_of_a_vanished_garm() {
    with_each_runtime("", |world| {
        // As on hosts with Docker: the provider then adds iptables rules for instances.
        world.host().shell("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        world.bring_up("alive", ENDLESS, json!({}));
        for round in 1..=8 {
            let document = world.garm.bootstrap("one", ENDLESS, json!({}));
            world.provider().start_create(&document).kill_after(Duration::from_millis(15) * round);
            let is_listed = || world.provider().names().contains(&"one".to_owned());
            // If the creation had finished, the instance is kept. Otherwise its supervisor dies with the call, perhaps
            // after `prune` has seen it.
            program::wait_until("the instance is removed or runs", || {
                world.installation.admin(&["prune", "--ended", "0s"]).success();
                !is_listed() || world.provider().get("one").status == AnswerStatus::Running
            });
            if is_listed() {
                world.provider().delete("one");
            }
            assert_eq!(world.provider().names(), ["alive"], "round {round}");
            assert_eq!(containers(&world.installation).len(), 1, "round {round}");
        }
        assert_eq!(world.provider().get("alive").status, AnswerStatus::Running);
        world.provider().delete("alive");
        world.installation.admin(&["prune"]).success();
        before.check(&world.installation, "prune");
    });
}

#[test]
fn constant_pruning_does_not_affect_instances() {
    with_each_runtime("", |world| {
        world.warm_up();
        let working = AtomicUsize::new(3);
        thread::scope(|scope| {
            for number in 0..3 {
                let working = &working;
                scope.spawn(move || {
                    // Counts down even on a panic, because the other thread waits for the count.
                    let _ended = CountdownGuard(working);
                    for round in 0..4 {
                        let name = format!("one-{number}-{round}");
                        let record = world.run(&name, "echo undisturbed", json!({}));
                        assert!(record.text.contains("stdout undisturbed"), "{}", record.text);
                        world.provider().delete(&name);
                    }
                });
            }
            scope.spawn(|| {
                while working.load(Ordering::Relaxed) > 0 {
                    world.installation.admin(&["prune", "--all"]).success();
                }
            });
        });
        assert!(containers(&world.installation).is_empty());
    });
}

struct CountdownGuard<'a>(&'a AtomicUsize);

impl Drop for CountdownGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
