//! Processes of a job killed at any phase of any command: the hook, the pause process, the uplink, the
//! runtime. `cleanup_job` finishes their work, and the next job runs.

use std::cell::Cell;
use std::time::Duration;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::kills::{KillSeries, KillVictim, PlannedKill};
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use serde_json::{Value, json};

use crate::rootless::setup::{UserKind, UsersRunner, redis, shell_step, with_each};

/// Default number of kills of each command, for each user on each runtime.
const KILLS: u32 = 3;

/// Process names (`comm`) of a job's helper processes.
const PAUSE_PROCESS: &[&str] = &["pause-process"];
const UPLINK: &[&str] = &["pasta", "pasta.avx2", "passt", "passt.avx2", "slirp4netns"];
const RUNTIME: &[&str] = &["runc", "crun"];

#[test]
fn killed_calls_leave_nothing_after_cleanup() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let mut victim = installation.runner("victim");
        let took = RootlessDurations::measure(&mut victim);
        let mut play = KillSeries::new(installation, KILLS);
        for victim_of in victims(&took) {
            play.kill(&mut victim, &victim_of);
        }
        play.end();
        run_next_job(&mut victim);
    });
}

#[test]
fn killed_pause_processes_leave_nothing_after_cleanup() {
    kill_at_any_moment(PAUSE_PROCESS);
}

#[test]
fn killed_uplinks_leave_nothing_after_cleanup() {
    kill_at_any_moment(UPLINK);
}

#[test]
fn killed_runtimes_leave_nothing_after_cleanup() {
    kill_at_any_moment(RUNTIME);
}

/// Kills processes of these names at any moment of each command.
fn kill_at_any_moment(names: &[&str]) {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let mut victim = installation.runner("victim");
        let took = RootlessDurations::measure(&mut victim);
        let mut play = KillSeries::new(installation, KILLS);
        let found = Cell::new(0);
        let by = |mut call: RunningCall, kill: &PlannedKill| {
            call.pass(kill.after);
            for name in names {
                let pids = installation.world.find_processes(name);
                installation.world.kill(&pids);
                found.set(found.get() + pids.len());
            }
            // Cancels an endless step that is still running, as the runner would.
            let (ended, _) = call.cancel();
            assert!(!ended.log().contains("panicked at"), "{kill}: {}", ended.log());
        };
        for victim_of in victims(&took) {
            play.kill_by(&mut victim, &victim_of, &by);
        }
        // Runtimes run for moments only, so random kills may miss them.
        assert!(found.get() > 0 || names == RUNTIME, "there was nothing to kill: {names:?}");
        play.end();
        run_next_job(&mut victim);
    });
}

/// No process of the hook runs between two calls, so only the next call can notice.
#[test]
fn job_with_a_dead_pause_process_is_reported_and_cleaned_up() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        let pause_processes = installation.world.find_processes(PAUSE_PROCESS[0]);
        assert_eq!(pause_processes.len(), 1, "a job has one pause process");
        installation.world.kill(&pause_processes);
        before.check_live(installation, "a pause process that was killed");
        let said = runner.run("echo it runs").failure();
        assert!(said.starts_with("::error::") && !said.contains("it runs"), "{said}");
        runner.container_step(shell_step("true"));
        runner.cleanup();
        before.check_live(installation, "a job whose pause process was killed");
        check_nothing_runs(installation);
        run_next_job(&mut runner);
    });
}

#[test]
fn cleanup_continues_in_a_new_pause_process_if_its_own_is_killed() {
    const MOMENTS: u32 = 8;
    with_each(&[UserKind::Ranges], "", |installation| {
        let mut runner = installation.runner("runner-1");
        let took = RootlessDurations::measure(&mut runner).cleanup;
        let before = LeftoverSnapshot::take(installation);
        for moment in 0..MOMENTS {
            prepare(&mut runner);
            let mut call = runner.start("cleanup_job", json!({}));
            call.pass(took * moment / MOMENTS);
            installation.world.kill(&installation.world.find_processes(PAUSE_PROCESS[0]));
            call.wait().success();
            runner.state = Value::Null;
            before.check_live(installation, &format!("moment {moment}"));
            check_nothing_runs(installation);
        }
    });
}

/// As when the runner's service is restarted during a job: all its processes are killed, and the next job is
/// prepared without a cleanup.
#[test]
fn restarted_runner_starts_its_next_job() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        let mut call = runner.start_run("echo started; exec sleep 1000");
        call.wait_for_line("started");
        installation.world.kill_all_of(installation.user.unwrap());
        call.wait();
        before.check_live(installation, "a service that ended");
        runner.state = Value::Null;
        run_next_job(&mut runner);
        before.check_live(installation, "the job after it");
        check_nothing_runs(installation);
    });
}

/// As above, but only the worker is gone, and the job's processes still run.
#[test]
fn unended_job_is_ended_by_the_next_job_of_the_runner() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        runner.state = Value::Null;
        run_next_job(&mut runner);
        before.check_live(installation, "the job after it");
        check_nothing_runs(installation);
    });
}

/// The user presses Ctrl-C repeatedly, or the service is stopped, which sends `SIGTERM` once.
#[test]
fn repeated_interrupts_at_any_time_leave_nothing() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let mut victim = installation.runner("victim");
        let took = RootlessDurations::measure(&mut victim);
        let mut play = KillSeries::new(installation, KILLS);
        let by = |mut call: RunningCall, kill: &PlannedKill| {
            call.pass(kill.after);
            for signal in ["INT", "INT", "TERM", "INT"] {
                let script = format!("kill -{signal} {} 2>/dev/null || true", call.id());
                oci_hooks_testsupport::program::run(
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
        run_next_job(&mut victim);
    });
}

/// Returns the commands to kill.
fn victims<'a>(took: &RootlessDurations) -> [KillVictim<'a, UsersRunner<'a>>; 5] {
    let finish = &|victim: &mut UsersRunner<'a>| drop(victim.cleanup());
    [
        KillVictim {
            name: "prepare_job",
            took: took.prepare,
            start: &|victim, _| {
                let job = victim.job_container("node:22");
                victim.start("prepare_job", json!({"container": job, "services": [redis()]}))
            },
            finish,
        },
        KillVictim {
            name: "prepare_job of services",
            took: took.prepare,
            start: &|victim, _| {
                let args = json!({"container": null, "services": [redis()]});
                victim.start("prepare_job", args)
            },
            finish,
        },
        KillVictim {
            name: "run_script_step",
            took: took.script,
            start: &|victim, _| {
                prepare(victim);
                victim.start_run("sleep 1000")
            },
            finish,
        },
        KillVictim {
            name: "run_container_step",
            took: took.container,
            start: &|victim, _| {
                prepare(victim);
                victim.start_container_step(shell_step("exec sleep 1000"))
            },
            finish,
        },
        KillVictim {
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
fn run_next_job(runner: &mut UsersRunner<'_>) {
    runner.prepare(runner.job_container("node:22"), &[redis()]);
    let pong = runner.run("printf 'PING\\r\\nQUIT\\r\\n' | nc redis 6379");
    assert_eq!(pong.success().stdout(), "+PONG\r\n");
    runner.cleanup();
}

#[track_caller]
fn check_nothing_runs(installation: &UserInstallation<'_>) {
    let left = installation.host().processes();
    let theirs: Vec<_> = left.iter().filter(|p| !p.line.contains("docker-registry")).collect();
    assert!(theirs.is_empty(), "{theirs:?}");
}

struct RootlessDurations {
    prepare: Duration,
    script: Duration,
    container: Duration,
    cleanup: Duration,
}

impl RootlessDurations {
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
