//! A call that is stopped at any moment, as by a debugger or a frozen cgroup: other runners go on, or are told which
//! process holds them up. Once it is continued, the call ends as it should.

use std::time::Duration;

use fastrand::Rng;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::setup::{redis, runner, shell_step, with_each_runtime};
use crate::support::call::{Call, Ended};
use crate::support::github_runner::Runner;
use crate::support::installation::Installation;
use crate::support::leftovers::Snapshot;

/// The variable that says how often each command is stopped on each runtime.
const COUNT: &str = "OCI_HOOKS_STOPS";
const STOPS: u32 = 2;

type Start<'a> = &'a dyn Fn(&mut Runner<'_>) -> Call;

fn job(runner: &Runner<'_>) -> Value {
    json!({"container": runner.job_container("node:22"), "services": [redis()]})
}

#[test]
fn a_stopped_call_holds_up_no_other_runner_in_silence() {
    let count = std::env::var(COUNT).map_or(STOPS, |count| count.parse().expect("a number"));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    with_each_runtime("", |installation| {
        let mut random = Rng::with_seed(seed);
        let (mut victim, mut other) =
            (runner(installation, "victim"), runner(installation, "other"));
        let commands: [(&str, bool, Start<'_>); 4] = [
            ("prepare_job", false, &|victim| victim.start("prepare_job", job(victim))),
            ("run_script_step", true, &|victim| victim.start_run("true")),
            ("run_container_step", true, &|victim| victim.start_container_step(shell_step("true"))),
            ("cleanup_job", true, &|victim| victim.start("cleanup_job", json!({}))),
        ];
        // Images are there afterwards.
        go_on(installation, &mut other);
        other.cleanup();
        for (name, is_prepared, start) in commands {
            let begin = |victim: &mut Runner<'_>| {
                if is_prepared {
                    victim.call("prepare_job", job(victim)).success();
                }
                start(victim)
            };
            let ended = begin(&mut victim).wait().success();
            victim.keep_state(&ended);
            let took = ended.took;
            victim.cleanup();
            let before = Snapshot::take(installation);
            for round in 0..count {
                let mut call = begin(&mut victim);
                let after = took.mul_f64((f64::from(round) + random.f64()) / f64::from(count));
                call.pass(after);
                call.signal(Signal::STOP);
                go_on(installation, &mut other);
                // No worker runs here between calls: to prune, a job that waits for its steps is abandoned.
                if !matches!(name, "run_script_step" | "run_container_step") {
                    look(installation, "prune");
                }
                call.signal(Signal::CONT);
                let ended = call.wait();
                assert_eq!(ended.status.code(), Some(0), "{name} after {after:?}: {}", ended.log());
                victim.keep_state(&ended);
                victim.cleanup();
                other.cleanup();
                before
                    .check_live(installation, &format!("{name} that was stopped after {after:?}"));
            }
        }
    });
}

/// Has another runner run a job, and the administrator look.
fn go_on(installation: &Installation<'_>, other: &mut Runner<'_>) {
    let prepared = other.call("prepare_job", job(other));
    if is_done(&prepared) {
        is_done(&other.run("true"));
    }
    is_done(&other.call("cleanup_job", json!({})));
    look(installation, "ps");
}

fn look(installation: &Installation<'_>, command: &str) {
    let finished = installation.admin(&[command]);
    assert!(finished.status.success() || is_held_up(&finished.stderr), "{}", finished.stderr);
}

/// Returns whether a call succeeded; one that failed was held up.
fn is_done(ended: &Ended) -> bool {
    assert!(ended.took < Duration::from_secs(100), "{:?}", ended.took);
    let is_success = ended.status.success();
    assert!(is_success || is_held_up(&ended.log()), "{}", ended.log());
    is_success
}

fn is_held_up(said: &str) -> bool {
    said.contains("has held it for") && said.contains("is stopped")
}
