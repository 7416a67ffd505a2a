//! The provider is killed at any moment of any call, and what GARM calls next finishes it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, World, with_each_runtime};
use crate::support::garm::faults::Fault;
use crate::support::http::Gate;
use crate::support::leftovers::{Snapshot, containers, no_cgroup_of};

/// How many points of time of each call.
const ROUNDS: u32 = 12;

#[test]
fn row_31_whatever_is_killed_while_it_creates_is_undone_by_delete() {
    with_each_runtime("", |world| {
        let took = measure(world).0;
        let before = Snapshot::take(&world.installation);
        for round in 0..ROUNDS {
            kill_creation(world, at(took, round));
            delete(world, &before, &format!("creation {round} of {took:?}"));
        }
    });
}

#[test]
fn whatever_is_killed_while_it_creates_is_taken_over_by_the_next_creation() {
    with_each_runtime("", |world| {
        let took = measure(world).0;
        let before = Snapshot::take(&world.installation);
        for round in 0..ROUNDS {
            kill_creation(world, at(took, round));
            let document = world.garm.bootstrap("one", "echo second life; sleep 1000", json!({}));
            let ended = world.provider().start_create(&document).wait();
            // It may have been done by the time it was killed.
            if ended.status.code() != Some(31) {
                ended.success();
                world.installation.wait_for_log("one", "second life");
            }
            assert_eq!(world.provider().names(), ["one"], "creation {round}");
            delete(world, &before, &format!("creation {round} of {took:?}"));
        }
    });
}

#[test]
fn row_31_whatever_is_killed_while_it_deletes_is_deleted_by_the_next() {
    with_each_runtime("", |world| {
        let took = measure(world).1;
        let before = Snapshot::take(&world.installation);
        for round in 0..ROUNDS {
            world.create("one", ENDLESS, json!({}));
            if round % 2 == 0 {
                world.installation.wait_for_log("one", "working");
            }
            world.provider().start("DeleteInstance", "one", Vec::new()).kill_after(at(took, round));
            delete(world, &before, &format!("deletion {round} of {took:?}"));
        }
    });
}

#[test]
fn a_killed_download_leaves_nothing_and_the_next_has_it_all() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        let base = json!({"image": "docker.io/garm/base:1"});
        let gate = Gate::default();
        world.garm.plan("/downloads/", Fault::Hold(500, gate.clone()), 1);
        let document = world.garm.bootstrap("one", "true", base.clone());
        let mut call = world.provider().start_create(&document);
        gate.wait_until_reached();
        call.signal(Signal::KILL);
        gate.open();
        drop(call.wait());
        world.provider().delete("one");
        before.check_live(&world.installation, "a killed download");
        world.run("one", "true", base);
        world.provider().delete("one");
        before.check_live(&world.installation, "the next");
    });
}

/// A host that loses its power has nothing of `/run` after, and no process.
#[test]
fn whatever_a_boot_of_the_host_ends_is_undone_by_delete() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        world.bring_up("one", ENDLESS, json!({}));
        let program = world.installation.program().display().to_string();
        for process in world.host().processes() {
            if process.line.starts_with(&program) || process.line.contains("sleep 1000") {
                world.host().shell(&format!("kill -9 {} 2>/dev/null || true", process.pid));
            }
        }
        delete(world, &before, "everything killed");
    });
}

fn at(took: Duration, round: u32) -> Duration {
    took * (2 * round + 1) / (2 * ROUNDS)
}

fn kill_creation(world: &World<'_>, after: Duration) {
    let document = world.garm.bootstrap("one", ENDLESS, json!({}));
    world.provider().start_create(&document).kill_after(after);
}

#[track_caller]
fn delete(world: &World<'_>, before: &Snapshot, context: &str) {
    let mut cgroups = containers(&world.installation);
    cgroups.extend(world.installation.cgroups());
    cgroups.retain(|name| name != "supervisors");
    world.provider().delete("one");
    before.check(&world.installation, context);
    no_cgroup_of(&cgroups);
    assert_eq!(world.provider().names(), <[String; 0]>::default(), "{context}");
}

/// Returns how long a creation and a deletion take, and has everything there that is made once.
fn measure(world: &World<'_>) -> (Duration, Duration) {
    world.warm_up();
    let document = world.garm.bootstrap("one", ENDLESS, json!({}));
    let create = world.provider().start_create(&document).wait().success().took;
    world.installation.wait_for_log("one", "working");
    let start = Instant::now();
    world.provider().delete("one");
    (create, start.elapsed())
}
