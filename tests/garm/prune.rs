//! `prune`, for hosts whose GARM deletes nothing any more.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::setup::{ENDLESS, with_each_runtime};
use crate::support::garm::answer::Status;
use crate::support::leftovers::{Snapshot, containers};

#[test]
fn what_a_garm_that_is_gone_left_half_made_is_pruned() {
    with_each_runtime("", |world| {
        // As beside Docker: instances have rules there too.
        world.host().shell("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        world.bring_up("alive", ENDLESS, json!({}));
        for round in 1..=8 {
            let document = world.garm.bootstrap("one", ENDLESS, json!({}));
            world.provider().start_create(&document).kill_after(Duration::from_millis(15) * round);
            world.installation.admin(&["prune"]).success();
            let names = world.provider().names();
            // One that was done by then, or that its supervisor goes on with, is an instance.
            if names.contains(&"one".to_owned()) {
                assert_eq!(world.provider().get("one").status, Status::Running, "round {round}");
                world.provider().delete("one");
            }
            assert_eq!(world.provider().names(), ["alive"], "round {round}");
            assert_eq!(containers(&world.installation).len(), 1, "round {round}");
        }
        assert_eq!(world.provider().get("alive").status, Status::Running);
        world.provider().delete("alive");
        world.installation.admin(&["prune"]).success();
        before.check(&world.installation, "prune");
    });
}

#[test]
fn pruning_all_the_while_takes_nothing_from_instances() {
    with_each_runtime("", |world| {
        world.warm_up();
        let working = AtomicUsize::new(3);
        thread::scope(|scope| {
            for number in 0..3 {
                let working = &working;
                scope.spawn(move || {
                    // Counted down by a panic too: the other thread waits for it.
                    let _ended = Ended(working);
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

struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
