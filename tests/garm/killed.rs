//! The provider is killed at any moment of any call, and what GARM calls next finishes it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, World, with_each_runtime};
use crate::support::call::Call;
use crate::support::garm::faults::Fault;
use crate::support::http::Gate;
use crate::support::kills::{Play, Victim};
use crate::support::leftovers::{Snapshot, containers, no_cgroup_of};

/// How often each call is killed on each runtime if nobody asks for more.
const KILLS: u32 = 6;

#[test]
fn whatever_is_killed_is_finished_by_the_next_call() {
    with_each_runtime("", |world| {
        let took = Took::measure(world);
        let delete = |world: &mut &World<'_>| {
            world.provider().delete("one");
            assert_eq!(world.provider().names(), <[String; 0]>::default());
        };
        let remove_all = |world: &mut &World<'_>| {
            world.provider().remove_all();
            assert_eq!(world.provider().names(), <[String; 0]>::default());
        };
        let take_over = |world: &mut &World<'_>| {
            let document = world.garm.bootstrap("one", "echo second life; sleep 1000", json!({}));
            let ended = world.provider().start_create(&document).wait();
            // It may have been done by the time it was killed.
            if ended.status.code() != Some(31) {
                ended.success();
                world.installation.wait_for_log("one", "second life");
            }
            assert_eq!(world.provider().names(), ["one"]);
            delete(world);
        };
        let commands: [(&str, Duration, Start<'_>, Finish<'_>); 4] = [
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
        let mut play = Play::new(&world.installation, KILLS);
        for (name, took, start, finish) in commands {
            play.kill(&mut &*world, &Victim { name, took, start, finish });
        }
        play.end();
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

type Start<'a> = &'a dyn Fn(&mut &World<'_>, u32) -> Call;
type Finish<'a> = &'a dyn Fn(&mut &World<'_>);

fn create(world: &mut &World<'_>, _: u32) -> Call {
    world.provider().start_create(&world.garm.bootstrap("one", ENDLESS, json!({})))
}

/// Starts to remove an instance that has a job, or is just coming up.
fn remove(world: &mut &World<'_>, number: u32, command: &str) -> Call {
    world.create("one", ENDLESS, json!({}));
    if number.is_multiple_of(2) {
        world.installation.wait_for_log("one", "working");
    }
    let instance = if command == "DeleteInstance" { "one" } else { "" };
    world.provider().start(command, instance, Vec::new())
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

/// How long calls take.
struct Took {
    create: Duration,
    delete: Duration,
}

impl Took {
    /// Has everything there too that is made once.
    fn measure(world: &World<'_>) -> Self {
        world.warm_up();
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        let create = world.provider().start_create(&document).wait().success().took;
        world.installation.wait_for_log("one", "working");
        let start = Instant::now();
        world.provider().delete("one");
        Self { create, delete: start.elapsed() }
    }
}
