//! A call, its pause process or its uplink is stopped at any moment: other runners continue, or report the
//! blocking process.

use std::path::Path;
use std::process::Command;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::kills::SignalTarget;
use oci_hooks_testsupport::leftovers::InstalledProgram as _;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::stops::{RunnerPair, choose_some};
use rustix::process::Signal;
use serde_json::json;

use crate::rootless::setup::{UserKind, with, with_each};

/// Default number of stopped commands.
const USUAL: usize = 2;

/// Names of processes that run beside jobs.
const HELPERS: &[&str] = &["pause-process", "pasta", "pasta.avx2", "slirp4netns", "buildah"];

/// Returns all users and runtimes if the environment sets the number of stops, otherwise a random one.
fn users() -> Vec<(UserKind, TestRuntime)> {
    choose_some(
        UserKind::ROOTLESS
            .into_iter()
            .flat_map(|who| TestRuntime::ALL.map(|runtime| (who, runtime))),
    )
}

#[test]
fn stopped_call_delays_other_runners_with_a_message() {
    for (who, runtime) in users() {
        with(who, runtime, "", |installation| {
            let [victim, other] = ["victim", "other"].map(|name| installation.runner(name));
            let pruned = &["pull", "prune"];
            RunnerPair { hook: installation, victim, other, pruned }.stop(HELPERS, USUAL);
        });
    }
}

/// As if a call were stopped while it creates the pause process.
#[test]
fn prune_names_the_process_that_keeps_a_job_and_continues() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let [mut kept, mut other] = ["kept", "other"].map(|name| installation.runner(name));
        for runner in [&mut kept, &mut other] {
            runner.prepare(runner.job_container("node:22"), &[]);
        }
        let find = "grep -l '\"kept\"' */pause.json | sed 's|/.*|.lock|'";
        let jobs = installation.jobs_directory();
        let lock = installation.host().shell(&format!("cd {}; {find}", jobs.display()));
        let _holding = hold(installation, &jobs.join(lock.trim_end()));
        let pruned = installation.start_admin(&["prune"]).wait().success().log();
        assert!(pruned.contains("/flock ") && pruned.contains(" has held it for "), "{pruned}");
        let pause_processes = installation.world.find_processes("pause-process");
        assert_eq!(pause_processes.len(), 1, "that of the other is gone");
    });
}

#[test]
fn call_names_the_process_outside_its_job_that_it_waits_for() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let mut runner = installation.runner("runner");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let mut holding = hold(installation, &installation.store().join("lock"));
        let args = json!({"container": runner.job_container("node:22"), "services": []});
        let mut call = runner.start("prepare_job", args);
        call.wait_for_line(": a process outside of this job (`lslocks` names it) has held it for ");
        // The child of `flock` holds the lock, too.
        holding.signal_to(SignalTarget::Group, Signal::KILL);
        runner.keep_state(&call.wait().success());
        runner.cleanup();
    });
}

/// Starts processes that hold a lock until they are killed.
fn hold(installation: &UserInstallation<'_>, lock: &Path) -> RunningCall {
    let mut command = Command::new(program::find("flock"));
    command.arg(lock).args(["sh", "-c", "echo held; exec sleep 1000"]);
    let mut holding = RunningCall::start(installation.host(), command, Vec::new(), None);
    holding.wait_for_line("held");
    holding
}
