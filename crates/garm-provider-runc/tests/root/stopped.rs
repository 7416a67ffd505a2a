//! Calls stopped at any moment, as by a debugger or a frozen cgroup: calls for other instances continue, or report
//! the process that they wait for.

use std::process::Command;

use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::provider::ProviderCaller;
use oci_hooks_testsupport::kills::SignalTarget;
use oci_hooks_testsupport::leftovers::InstalledProgram as _;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::stops::{
    self, BackgroundActivity, StopSeries, check_command, choose_some, is_done,
};
use oci_hooks_testsupport::world::UserIds;
use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, GarmFixture, RUNTIMES_AND_IDS, with_runtime, with_user};

/// Default number of stopped commands.
const USUAL: usize = 2;

/// Helper processes of rootless instances.
const HELPERS: &[&str] = &["pause-process", "pasta", "pasta.avx2", "slirp4netns"];

/// An image that no instance uses.
const IMAGE: &str = "docker.io/garm/base:1";

#[test]
fn stopped_call_delays_other_instances_with_a_message() {
    for runtime in choose_some(TestRuntime::ALL) {
        with_runtime(runtime, "", |world| sweep(world, &[], USUAL));
    }
}

#[test]
fn stopped_call_of_a_user_delays_other_instances_with_a_message() {
    for (runtime, ids) in choose_some(RUNTIMES_AND_IDS) {
        with_user(runtime, ids, "", |world, _| sweep(world, HELPERS, USUAL));
    }
}

/// Stops commands of GARM and of the admin.
fn sweep(world: &GarmFixture<'_>, helpers: &'static [&'static str], usual: usize) {
    let installation = &world.installation;
    let create = || drop(world.create("one", ENDLESS, json!({})));
    let start = |command: &str| world.provider().start(command, "one", Vec::new());
    let commands: [stops::StopCommand<'_, TwoControllers<'_>>; 8] = [
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
            world.provider().wait_for("one", AnswerStatus::Stopped);
            installation.start_admin(&["prune", "--ended", "0s", "--all"])
        }),
        ("pull", &|_, _| {
            installation.admin(&["prune", "--all"]).success();
            installation.start_admin(&["pull", IMAGE])
        }),
    ];
    let other = world.provider().of_controller("22222222-2222-2222-2222-222222222222");
    StopSeries::new(installation, helpers).stop(
        &mut TwoControllers { world, other },
        &commands,
        usual,
    );
}

/// Two GARM controllers: calls of the first are stopped, and the other continues.
struct TwoControllers<'a> {
    world: &'a GarmFixture<'a>,
    other: ProviderCaller<'a>,
}

impl BackgroundActivity for TwoControllers<'_> {
    fn run_other_commands(&mut self, stopped: &str) {
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
            check_command(|| world.installation.admin(&["pull", IMAGE]));
        }
        check_command(|| world.installation.admin(&["instances"]));
        check_command(|| world.installation.admin(&["prune", "--ended", "0s"]));
    }

    fn finish(&mut self) {
        self.other.delete("other");
        self.world.provider().delete("one");
        assert_eq!(self.world.provider().names(), <[String; 0]>::default());
    }
}

/// A locked instance does not prevent the removal of others.
#[test]
fn removal_of_many_instances_names_the_blocking_process() {
    with_runtime(TestRuntime::Crun, "", |world| {
        check_locked_instance_is_kept(world, "ls $PWD/garm/*/locks/kept");
    });
    let lock =
        "for it in $(grep -l '/kept\"' $PWD/instances/*/pause.json); do echo ${it%/*}.lock; done";
    with_user(TestRuntime::Runc, UserIds::None, "", |world, _| {
        check_locked_instance_is_kept(world, lock);
    });
}

/// Locks an instance in another process; the shell script `lock` finds the lock file in the run directory.
fn check_locked_instance_is_kept(world: &GarmFixture<'_>, lock: &str) {
    let create = |name| {
        world.create(name, "true", json!({}));
        world.provider().wait_for(name, AnswerStatus::Stopped);
    };
    create("kept");
    create("other");
    let run = world.installation.run_directory().display().to_string();
    let lock = world.host().shell(&format!("cd {run}; {lock}"));
    let mut holding = Command::new(program::find("flock"));
    holding.args([lock.trim_end(), "sh", "-c", "echo held; exec sleep 1000"]);
    let mut holding = RunningCall::start(world.host(), holding, Vec::new(), None);
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
    holding.signal_to(SignalTarget::Group, Signal::KILL);
    holding.wait();
    world.provider().delete("kept");
    assert_eq!(world.provider().names(), <[String; 0]>::default());
}
