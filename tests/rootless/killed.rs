//! Anything of a job is killed at any phase of any command: the call, the job's holder, its way to the
//! outside, its runtimes. `cleanup_job` finishes what was begun, and the next job runs.

use std::cell::Cell;
use std::time::Duration;

use serde_json::{Value, json};

use crate::setup::{UsersRunner, Who, redis, shell_step, with_each};
use crate::support::by_user::ByUser;
use crate::support::call::Call;
use crate::support::kills::{Kill, Play, Victim};
use crate::support::leftovers::{Installed as _, Snapshot};

/// How often each command is killed for each user on each runtime if nobody asks for more.
const KILLS: u32 = 3;

/// The names of processes that a job needs, as the kernel has them.
const HOLDER: &[&str] = &["job-holder"];
const UPLINK: &[&str] = &["pasta", "pasta.avx2", "passt", "passt.avx2", "slirp4netns"];
const RUNTIME: &[&str] = &["runc", "crun"];

#[test]
fn calls_that_are_killed_leave_nothing_after_cleanup() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut victim = installation.runner("victim");
        let took = Took::measure(&mut victim);
        let mut play = Play::new(installation, KILLS);
        for victim_of in victims(&took) {
            play.kill(&mut victim, &victim_of);
        }
        play.end();
        the_next_job_runs(&mut victim);
    });
}

#[test]
fn holders_that_are_killed_leave_nothing_after_cleanup() {
    killed(HOLDER);
}

#[test]
fn uplinks_that_are_killed_leave_nothing_after_cleanup() {
    killed(UPLINK);
}

#[test]
fn runtimes_that_are_killed_leave_nothing_after_cleanup() {
    killed(RUNTIME);
}

/// Kills processes of these names at any time of each command.
fn killed(names: &[&str]) {
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut victim = installation.runner("victim");
        let took = Took::measure(&mut victim);
        let mut play = Play::new(installation, KILLS);
        let found = Cell::new(0);
        let by = |mut call: Call, kill: &Kill| {
            call.pass(kill.after);
            for name in names {
                let pids = installation.world.named(name);
                installation.world.kill(&pids);
                found.set(found.get() + pids.len());
            }
            // A step without an end that does not notice is told, as the runner tells it.
            let (ended, _) = call.cancel();
            assert!(!ended.log().contains("panicked at"), "{kill}: {}", ended.log());
        };
        for victim_of in victims(&took) {
            play.kill_by(&mut victim, &victim_of, &by);
        }
        // Runtimes are there for moments only, which chance may miss.
        assert!(found.get() > 0 || names == RUNTIME, "there was nothing to kill: {names:?}");
        play.end();
        the_next_job_runs(&mut victim);
    });
}

/// Between two calls nobody is there who could notice.
#[test]
fn a_job_whose_holder_is_dead_says_so_and_is_cleaned_up() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        let holders = installation.world.named(HOLDER[0]);
        assert_eq!(holders.len(), 1, "a job has one holder");
        installation.world.kill(&holders);
        before.check_live(installation, "a holder that was killed");
        let said = runner.run("echo it runs").failure();
        assert!(said.starts_with("::error::") && !said.contains("it runs"), "{said}");
        runner.container_step(shell_step("true"));
        runner.cleanup();
        before.check_live(installation, "a job whose holder was killed");
        nothing_runs(installation);
        the_next_job_runs(&mut runner);
    });
}

#[test]
fn a_cleanup_whose_holder_is_killed_meanwhile_goes_on_in_a_new_one() {
    const MOMENTS: u32 = 8;
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let took = Took::measure(&mut runner).cleanup;
        let before = Snapshot::take(installation);
        for moment in 0..MOMENTS {
            prepare(&mut runner);
            let mut call = runner.start("cleanup_job", json!({}));
            call.pass(took * moment / MOMENTS);
            installation.world.kill(&installation.world.named(HOLDER[0]));
            call.wait().success();
            runner.state = Value::Null;
            before.check_live(installation, &format!("moment {moment}"));
            nothing_runs(installation);
        }
    });
}

/// As when the service of the runner is started again while a job runs: all processes of it are killed, and
/// the next job is prepared without any cleanup of the one before.
#[test]
fn a_runner_that_was_restarted_begins_its_next_job() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        let mut call = runner.start_run("echo started; exec sleep 1000");
        call.wait_for_line("started");
        installation.world.kill_all_of(installation.user.unwrap());
        call.wait();
        before.check_live(installation, "a service that ended");
        runner.state = Value::Null;
        the_next_job_runs(&mut runner);
        before.check_live(installation, "the job after it");
        nothing_runs(installation);
    });
}

/// The same if only the worker is gone, and the job's processes are not.
#[test]
fn a_job_that_nobody_ended_ends_with_the_next_of_the_runner() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        runner.state = Value::Null;
        the_next_job_runs(&mut runner);
        before.check_live(installation, "the job after it");
        nothing_runs(installation);
    });
}

/// The user presses Ctrl-C again and again, or the service is stopped, which sends `SIGTERM` once.
#[test]
fn impatient_users_are_heard_at_any_time() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut victim = installation.runner("victim");
        let took = Took::measure(&mut victim);
        let mut play = Play::new(installation, KILLS);
        let by = |mut call: Call, kill: &Kill| {
            call.pass(kill.after);
            for signal in ["INT", "INT", "TERM", "INT"] {
                let script = format!("kill -{signal} {} 2>/dev/null || true", call.id());
                crate::support::program::run(
                    std::process::Command::new("sh").args(["-c", &script]),
                )
                .success();
                call.pass(Duration::from_millis(20));
            }
            let ended = call.wait();
            assert!(!ended.log().contains("panicked at"), "{kill}: {}", ended.log());
        };
        for victim_of in victims(&took) {
            play.kill_by(&mut victim, &victim_of, &by);
        }
        play.end();
        the_next_job_runs(&mut victim);
    });
}

/// Returns the commands that are killed.
fn victims<'a>(took: &Took) -> [Victim<'a, UsersRunner<'a>>; 5] {
    let finish = &|victim: &mut UsersRunner<'a>| drop(victim.cleanup());
    [
        Victim {
            name: "prepare_job",
            took: took.prepare,
            start: &|victim, _| {
                let job = victim.job_container("node:22");
                victim.start("prepare_job", json!({"container": job, "services": [redis()]}))
            },
            finish,
        },
        Victim {
            name: "prepare_job of services",
            took: took.prepare,
            start: &|victim, _| {
                let args = json!({"container": null, "services": [redis()]});
                victim.start("prepare_job", args)
            },
            finish,
        },
        Victim {
            name: "run_script_step",
            took: took.script,
            start: &|victim, _| {
                prepare(victim);
                victim.start_run("sleep 1000")
            },
            finish,
        },
        Victim {
            name: "run_container_step",
            took: took.container,
            start: &|victim, _| {
                prepare(victim);
                victim.start_container_step(shell_step("exec sleep 1000"))
            },
            finish,
        },
        Victim {
            name: "cleanup_job",
            took: took.cleanup,
            start: &|victim, _| {
                prepare(victim);
                victim.start("cleanup_job", json!({}))
            },
            finish,
        },
    ]
}

fn prepare(runner: &mut UsersRunner<'_>) {
    runner.prepare(runner.job_container("node:22"), &[]);
}

#[track_caller]
fn the_next_job_runs(runner: &mut UsersRunner<'_>) {
    runner.prepare(runner.job_container("node:22"), &[redis()]);
    let pong = runner.run("printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379");
    assert_eq!(pong.success().stdout(), "+PONG\r\n");
    runner.cleanup();
}

#[track_caller]
fn nothing_runs(installation: &ByUser<'_>) {
    let left = installation.host().processes();
    let theirs: Vec<_> = left.iter().filter(|p| !p.line.contains("docker-registry")).collect();
    assert!(theirs.is_empty(), "{theirs:?}");
}

struct Took {
    prepare: Duration,
    script: Duration,
    container: Duration,
    cleanup: Duration,
}

impl Took {
    fn measure(runner: &mut UsersRunner<'_>) -> Self {
        let job = |runner: &mut UsersRunner<'_>| {
            let args = json!({"container": runner.job_container("node:22"), "services": [redis()]});
            let prepare = runner.call("prepare_job", args).success().took;
            let script = runner.run("true").success().took;
            let container = runner.container_step(shell_step("true")).0.success().took;
            let cleanup = runner.cleanup().took;
            Self { prepare, script, container, cleanup }
        };
        job(runner);
        job(runner)
    }
}
