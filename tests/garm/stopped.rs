//! A call that is stopped at any moment, as by a debugger or a frozen cgroup: other instances go on, or are told which
//! process holds them up.

use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, RUNTIMES_AND_IDS, World, with_runtime, with_user};
use crate::support::call::Call;
use crate::support::garm::answer::Status;
use crate::support::garm::provider::Provider;
use crate::support::kills::Whom;
use crate::support::leftovers::Installed as _;
use crate::support::program;
use crate::support::runtime::Runtime;
use crate::support::stops::{self, Others, Sweep, is_done, look, some};

/// How many commands are stopped if no more is asked for.
const USUAL: usize = 2;

/// What runs beside the instances of users who are not root.
const HELPERS: &[&str] = &["job-holder", "pasta", "pasta.avx2", "slirp4netns"];

/// An image that no instance has.
const IMAGE: &str = "docker.io/garm/base:1";

#[test]
fn a_stopped_call_holds_up_no_other_instance_in_silence() {
    for runtime in some(Runtime::ALL) {
        with_runtime(runtime, "", |world| sweep(world, &[], USUAL));
    }
}

#[test]
fn a_stopped_call_of_a_user_holds_up_no_other_instance_in_silence() {
    for (runtime, ids) in some(RUNTIMES_AND_IDS) {
        with_user(runtime, ids, "", |world, _| sweep(world, HELPERS, USUAL));
    }
}

/// Stops all that GARM and its administrator call.
fn sweep(world: &World<'_>, helpers: &'static [&'static str], usual: usize) {
    let installation = &world.installation;
    let create = || drop(world.create("one", ENDLESS, json!({})));
    let start = |command: &str| world.provider().start(command, "one", Vec::new());
    let commands: [stops::Command<'_, Garms<'_>>; 8] = [
        ("CreateInstance", &|_, _| {
            world.provider().start_create(&world.garm.bootstrap("one", ENDLESS, json!({})))
        }),
        ("DeleteInstance", &|_, _| {
            create();
            start("DeleteInstance")
        }),
        ("RemoveAllInstances", &|_, _| {
            create();
            world.provider().start("RemoveAllInstances", "", Vec::new())
        }),
        ("StopInstance", &|_, _| {
            create();
            start("StopInstance")
        }),
        ("StartInstance", &|_, _| {
            create();
            world.provider().stop_instance("one").success();
            start("StartInstance")
        }),
        ("rm", &|_, _| {
            create();
            installation.start_admin(&["rm", "--force", "one"])
        }),
        ("prune", &|_, _| {
            world.create("one", "true", json!({}));
            world.provider().wait_for("one", Status::Stopped);
            installation.start_admin(&["prune", "--ended", "0s", "--all"])
        }),
        ("pull", &|_, _| {
            installation.admin(&["prune", "--all"]).success();
            installation.start_admin(&["pull", IMAGE])
        }),
    ];
    let other = world.provider().of_controller("22222222-2222-2222-2222-222222222222");
    Sweep::new(installation, helpers).stop(&mut Garms { world, other }, &commands, usual);
}

/// Two that call the provider: the calls of one are stopped, and the other goes on.
struct Garms<'a> {
    world: &'a World<'a>,
    other: Provider<'a>,
}

impl Others for Garms<'_> {
    fn go_on(&mut self, stopped: &str) {
        let Self { world, other } = self;
        let document = world.garm.bootstrap("other", ENDLESS, json!({}));
        if is_done(&other.start_create(&document).wait()) {
            assert_eq!(other.names(), ["other"]);
            is_done(&other.start("StopInstance", "other", Vec::new()).wait());
            is_done(&other.start("StartInstance", "other", Vec::new()).wait());
        }
        world.provider().list();
        is_done(&other.start("DeleteInstance", "other", Vec::new()).wait());
        if stopped == "pull" {
            look(|| world.installation.admin(&["pull", IMAGE]));
        }
        look(|| world.installation.admin(&["instances"]));
        look(|| world.installation.admin(&["prune", "--ended", "0s"]));
    }

    fn finish(&mut self) {
        self.other.delete("other");
        self.world.provider().delete("one");
        assert_eq!(self.world.provider().names(), <[String; 0]>::default());
    }
}

/// The lock of one instance keeps no other from being removed.
#[test]
fn who_removes_many_instances_says_which_process_keeps_one() {
    with_runtime(Runtime::Crun, "", |world| one_is_kept(world, "ls $PWD/garm/*/locks/kept"));
    for (runtime, ids) in some(RUNTIMES_AND_IDS) {
        let lock = "for it in $(grep -l '/kept\"' $PWD/instances/*/holder.json); do echo ${it%/*}.lock; done";
        with_user(runtime, ids, "", |world, _| one_is_kept(world, lock));
    }
}

/// Has another process hold the lock of an instance, which a shell script finds in the run directory.
fn one_is_kept(world: &World<'_>, lock: &str) {
    let create = |name| {
        world.create(name, "true", json!({}));
        world.provider().wait_for(name, Status::Stopped);
    };
    create("kept");
    create("other");
    let run = world.installation.run_directory().display().to_string();
    let lock = world.host().shell(&format!("cd {run}; {lock}"));
    let mut holding = Command::new(program::find("flock"));
    holding.args([lock.trim_end(), "sh", "-c", "echo held; exec sleep 1000"]);
    let mut holding = Call::start(world.host(), holding, Vec::new(), None);
    holding.wait_for_line("held");
    let names_it = |said: &str| {
        assert!(said.contains("/flock ") && said.contains(" has held it for "), "{said}");
    };
    let pruned = world.installation.start_admin(&["prune", "--ended", "0s"]).wait().success();
    assert!(pruned.stdout().contains("removed instance other"), "{}", pruned.log());
    names_it(&pruned.log());
    create("other");
    let removed = world.installation.admin(&["rm", "kept", "other"]);
    assert!(removed.stdout.contains("removed instance other"), "{}", removed.stdout);
    names_it(&removed.failure());
    create("other");
    let ended = world.provider().start("RemoveAllInstances", "", Vec::new()).wait();
    assert_eq!(ended.status.code(), Some(1));
    names_it(&ended.log());
    assert_eq!(world.provider().names(), ["kept"]);
    holding.signal_to(Whom::Group, Signal::KILL);
    holding.wait();
    world.provider().delete("kept");
    assert_eq!(world.provider().names(), <[String; 0]>::default());
}
