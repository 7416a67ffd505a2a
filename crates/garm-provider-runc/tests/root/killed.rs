//! Kills the provider at any moment of any call; GARM's next call finishes the work.

use std::time::{Duration, Instant};

use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::garm::faults::ConnectionFault;
use oci_hooks_testsupport::http::Gate;
use oci_hooks_testsupport::kills::{KillSeries, KillVictim};
use oci_hooks_testsupport::leftovers::{LeftoverSnapshot, assert_no_cgroups, containers};
use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, GarmFixture, with_both_runtimes, with_each_runtime};

/// Default number of kills of each call on each runtime.
const KILLS: u32 = 6;

#[test]
fn next_call_completes_a_killed_one() {
    with_each_runtime("", |world| {
        let took = CallDurations::measure(world);
        let delete = |world: &mut &GarmFixture<'_>| {
            world.provider().delete("one");
            assert_eq!(world.provider().names(), <[String; 0]>::default());
        };
        let remove_all = |world: &mut &GarmFixture<'_>| {
            world.provider().remove_all();
            assert_eq!(world.provider().names(), <[String; 0]>::default());
        };
        let take_over = |world: &mut &GarmFixture<'_>| {
            let document = world.garm.bootstrap("one", "echo second life; sleep 1000", json!({}));
            let ended = world.provider().start_create(&document).wait();
            // The first creation may have finished before the kill.
            if ended.status.code() != Some(31) {
                ended.success();
                world.installation.wait_for_log("one", "second life");
            }
            assert_eq!(world.provider().names(), ["one"]);
            delete(world);
        };
        let commands: [(&str, Duration, StartCall<'_>, AfterKill<'_>); 4] = [
            ("creation", took.create, &create, &delete),
            ("creation before another", took.create, &create, &take_over),
            (
                "deletion",
                took.delete,
                &|world, number| remove(world, number, "DeleteInstance"),
                &delete,
            ),
            (
                "removal of all",
                took.delete,
                &|world, number| remove(world, number, "RemoveAllInstances"),
                &remove_all,
            ),
        ];
        let mut play = KillSeries::new(&world.installation, KILLS);
        for (name, took, start, finish) in commands {
            play.kill(&mut &*world, &KillVictim { name, took, start, finish });
        }
        play.end();
    });
}

#[test]
fn killed_download_leaves_nothing_and_the_next_completes() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let base = json!({"image": "docker.io/garm/base:1"});
        let gate = Gate::default();
        world.garm.plan("/downloads/", ConnectionFault::Hold(500, gate.clone()), 1);
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

/// The supervisor and the job are killed, but files and mounts remain.
#[test]
fn delete_works_after_a_reboot_of_the_host() {
    with_both_runtimes("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        world.bring_up("one", ENDLESS, json!({}));
        world.wait_for_job();
        world.kill_processes();
        delete(world, &before, "everything killed");
    });
}

type StartCall<'a> = &'a dyn Fn(&mut &GarmFixture<'_>, u32) -> RunningCall;
type AfterKill<'a> = &'a dyn Fn(&mut &GarmFixture<'_>);

fn create(world: &mut &GarmFixture<'_>, _: u32) -> RunningCall {
    world.provider().start_create(&world.garm.bootstrap("one", ENDLESS, json!({})))
}

/// Starts to remove an instance that has a job, or is booting.
fn remove(world: &mut &GarmFixture<'_>, number: u32, command: &str) -> RunningCall {
    world.create("one", ENDLESS, json!({}));
    if number.is_multiple_of(2) {
        world.installation.wait_for_log("one", "working");
    }
    let instance = if command == "DeleteInstance" { "one" } else { "" };
    world.provider().start(command, instance, Vec::new())
}

#[track_caller]
fn delete(world: &GarmFixture<'_>, before: &LeftoverSnapshot, context: &str) {
    let mut cgroups = containers(&world.installation);
    cgroups.extend(world.installation.cgroups());
    world.provider().delete("one");
    before.check(&world.installation, context);
    assert_no_cgroups(&cgroups);
    assert_eq!(world.provider().names(), <[String; 0]>::default(), "{context}");
}

/// Durations of calls.
struct CallDurations {
    create: Duration,
    delete: Duration,
}

impl CallDurations {
    /// Measures the calls, after a first instance has created the shared files.
    fn measure(world: &GarmFixture<'_>) -> Self {
        world.warm_up();
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        let create = world.provider().start_create(&document).wait().success().took;
        world.installation.wait_for_log("one", "working");
        let start = Instant::now();
        world.provider().delete("one");
        Self { create, delete: start.elapsed() }
    }
}
