//! A call that is stopped at any moment, the holder of its job, or its way to the outside: other runners go on, or are
//! told which process holds them up.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::setup::{Who, with};
use crate::support::by_user::ByUser;
use crate::support::call::Call;
use crate::support::leftovers::Installed as _;
use crate::support::program;
use crate::support::runtime::Runtime;
use crate::support::stops::{Runners, some};

/// How many commands are stopped if no more is asked for.
const USUAL: usize = 2;

/// What runs beside jobs.
const HELPERS: &[&str] = &["job-holder", "pasta", "pasta.avx2", "slirp4netns", "buildah"];

/// Each user on each runtime.
fn users() -> Vec<(Who, Runtime)> {
    some(Who::ROOTLESS.into_iter().flat_map(|who| Runtime::ALL.map(|runtime| (who, runtime))))
}

#[test]
fn a_stopped_call_holds_up_no_other_runner_in_silence() {
    for (who, runtime) in users() {
        with(who, runtime, "", |installation| {
            let [victim, other] = ["victim", "other"].map(|name| installation.runner(name));
            let pruned = &["pull", "prune"];
            Runners { hook: installation, victim, other, pruned }.stop(HELPERS, USUAL);
        });
    }
}

/// As a call that is stopped while it makes the holder of its job.
#[test]
fn prune_says_which_process_keeps_a_job_and_goes_on() {
    for (who, runtime) in users() {
        with(who, runtime, "", |installation| {
            let [mut kept, mut other] = ["kept", "other"].map(|name| installation.runner(name));
            for runner in [&mut kept, &mut other] {
                runner.prepare(runner.job_container("node:22"), &[]);
            }
            let find = "grep -l '\"kept\"' */holder.json | sed 's|/.*|.lock|'";
            let jobs = installation.jobs_directory();
            let lock = installation.host().shell(&format!("cd {}; {find}", jobs.display()));
            let _holding = hold(installation, &jobs.join(lock.trim_end()), "1000");
            let pruned = installation.start_admin(&["prune"]).wait().success().log();
            assert!(pruned.contains("/flock ") && pruned.contains(" has held it for "), "{pruned}");
            let holders = installation.world.named("job-holder");
            assert_eq!(holders.len(), 1, "that of the other is gone");
        });
    }
}

#[test]
fn a_call_that_waits_for_a_process_outside_of_its_job_says_so() {
    for (who, runtime) in users() {
        with(who, runtime, "", |installation| {
            let mut runner = installation.runner("runner");
            runner.prepare(runner.job_container("node:22"), &[]);
            runner.cleanup();
            let _holding = hold(installation, &installation.store().join("lock"), "4");
            let args = json!({"container": runner.job_container("node:22"), "services": []});
            let log = runner.call("prepare_job", args).success().log();
            let said = ": a process outside of this job (`lslocks` names it) has held it for ";
            assert!(log.contains(said), "{log}");
            runner.cleanup();
        });
    }
}

/// Has a process hold a lock for some seconds.
fn hold(installation: &ByUser<'_>, lock: &Path, seconds: &str) -> Call {
    let mut command = Command::new(program::find("flock"));
    command.arg(lock).args(["sh", "-c", &format!("echo held; exec sleep {seconds}")]);
    let mut holding = Call::start(installation.host(), command, Vec::new(), None);
    holding.wait_for_line("held");
    holding
}
