//! Row 31: the hook is killed at any phase of any command, and `cleanup_job` finishes what it began.

use std::time::Duration;

use serde_json::json;

use crate::builds::{built_step, nothing_of_builds};
use crate::setup::{redis, runner, shell_step, with_each_runtime, write};
use crate::support::github_runner::Runner;
use crate::support::installation::Installation;
use crate::support::leftovers::{Snapshot, containers, no_cgroup_of};

/// How many points of time of each command.
const ROUNDS: u32 = 6;

#[test]
fn row_31_whatever_is_killed_leaves_nothing_after_cleanup() {
    with_each_runtime("", |installation| {
        let mut bystander = runner(installation, "bystander");
        bystander.prepare(bystander.job_container("node:22"), &[redis()]);
        let mut victim = runner(installation, "victim");
        // Once whole: images are there then, and how long each takes is known.
        let took = Took::measure(&mut victim);
        let before = Snapshot::take(installation);
        let services = || json!({"container": null, "services": [redis()]});
        for round in 0..ROUNDS {
            let at = |took: Duration| took * (2 * round + 1) / (2 * ROUNDS);
            let args = json!({"container": victim.job_container("node:22"), "services": [redis()]});
            victim.start("prepare_job", args).kill_after(at(took.prepare));
            check(&mut victim, installation, &before, &format!("prepare_job {round}"));

            victim.start("prepare_job", services()).kill_after(at(took.prepare));
            check(&mut victim, installation, &before, &format!("prepare_job of services {round}"));

            prepare(&mut victim);
            victim.start_run("sleep 1000").kill_after(at(took.script));
            check(&mut victim, installation, &before, &format!("run_script_step {round}"));

            prepare(&mut victim);
            let step = shell_step("exec sleep 1000");
            victim.start_container_step(step).kill_after(at(took.container));
            check(&mut victim, installation, &before, &format!("run_container_step {round}"));

            prepare(&mut victim);
            victim.start("cleanup_job", json!({})).kill_after(at(took.cleanup));
            check(&mut victim, installation, &before, &format!("cleanup_job {round}"));
        }
        let pong = bystander.run("printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379");
        assert_eq!(pong.success().stdout(), "+PONG\r\n");
        bystander.cleanup();
    });
}

/// `prune` is for machines whose runner is gone too: no `cleanup_job` will come.
#[test]
fn row_31_prune_removes_what_a_runner_that_is_gone_left() {
    with_each_runtime("", |installation| {
        // As beside Docker: jobs have rules there too.
        installation.host().shell("iptables -P FORWARD DROP; ip6tables -P FORWARD DROP");
        Took::measure(&mut runner(installation, "victim"));
        let before = Snapshot::take(installation);
        let mut victim = runner(installation, "gone");
        victim.through_worker();
        let args = json!({"container": victim.job_container("node:22"), "services": [redis()]});
        // The worker is killed; the hook goes on with its own work.
        victim.start("prepare_job", args).kill_after(Duration::from_millis(60));
        installation.wait_for_hooks();
        installation.admin(&["prune"]).success();
        before.check(installation, "prune");
    });
}

/// A runtime dies a moment after the hook that called it.
#[test]
fn what_a_dying_runtime_made_last_goes_with_the_next_call() {
    with_each_runtime("", |installation| {
        let mut victim = runner(installation, "victim");
        prepare(&mut victim);
        victim.cleanup();
        let before = Snapshot::take(installation);
        let half = installation.run_directory().join("runtime/0123456789abcdef");
        for is_admin in [false, true] {
            let path = half.display();
            installation.host().shell(&format!("mkdir {path}; mkfifo {path}/exec.fifo"));
            if is_admin {
                installation.admin(&["prune"]).success();
            } else {
                victim.cleanup();
            }
            before.check(installation, "a half-made container of the runtime");
        }
    });
}

/// Each build is of another Dockerfile, so that none has been made before.
#[test]
fn row_31_a_killed_build_leaves_nothing_after_cleanup() {
    with_each_runtime("", |installation| {
        let mut victim = runner(installation, "victim");
        let dockerfile = |victim: &Runner<'_>, number: u32| {
            let path = victim.workspace().join(format!("{number}/Dockerfile"));
            write(&path, &format!("FROM alpine:3.20\nRUN echo {number} >/number\n"));
            built_step(&path)
        };
        let step = dockerfile(&victim, 1000);
        let took = victim.container_step(step).0.success().took;
        victim.cleanup();
        let before = Snapshot::take(installation);
        for round in 0..ROUNDS {
            let step = dockerfile(&victim, round);
            victim.start_container_step(step).kill_after(took * (2 * round + 1) / (2 * ROUNDS));
            victim.cleanup();
            before.check_live(installation, &format!("build {round} of {took:?}"));
            nothing_of_builds(installation, 0);
        }
    });
}

fn prepare(runner: &mut Runner<'_>) {
    runner.prepare(runner.job_container("node:22"), &[]);
}

fn check(
    victim: &mut Runner<'_>,
    installation: &Installation<'_>,
    before: &Snapshot,
    context: &str,
) {
    let known = containers(installation);
    victim.cleanup();
    before.check(installation, context);
    let kept = containers(installation);
    let removed: Vec<_> = known.into_iter().filter(|id| !kept.contains(id)).collect();
    no_cgroup_of(&removed);
}

struct Took {
    prepare: Duration,
    script: Duration,
    container: Duration,
    cleanup: Duration,
}

impl Took {
    fn measure(runner: &mut Runner<'_>) -> Self {
        let job = |runner: &mut Runner<'_>| {
            let args = json!({"container": runner.job_container("node:22"), "services": [redis()]});
            let prepare = runner.call("prepare_job", args).success().took;
            let script = runner.run("true").success().took;
            let container = runner.container_step(shell_step("true")).0.success().took;
            Self { prepare, script, container, cleanup: runner.cleanup().took }
        };
        job(runner);
        job(runner)
    }
}
