//! Runners at once on one machine, and one that is killed among them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::setup::{redis, runner, shell_step, with_each_runtime};
use crate::support::installation::Installation;
use crate::support::leftovers::{Snapshot, containers, no_cgroup_of};

const RUNNERS: usize = 8;
const KILLED: usize = 3;

#[test]
fn eight_jobs_at_once_do_not_notice_that_one_is_killed() {
    with_each_runtime("", |installation| {
        let before = Snapshot::take(installation);
        thread::scope(|scope| {
            for number in 0..RUNNERS {
                scope.spawn(move || match number {
                    KILLED => killed(installation),
                    _ => job(installation, number),
                });
            }
        });
        before.check_live(installation, "a job");
        let left = containers(installation);
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn pruning_all_the_while_takes_nothing_from_running_steps() {
    with_each_runtime("", |installation| {
        let before = Snapshot::take(installation);
        let running = AtomicUsize::new(3);
        thread::scope(|scope| {
            for number in 0..running.load(Ordering::Relaxed) {
                let running = &running;
                scope.spawn(move || {
                    // Counted down by a panic too: the other thread waits for it.
                    let _ended = Ended(running);
                    let mut runner = runner(installation, &format!("runner-{number}"));
                    // What has no worker any more is nobody's.
                    runner.through_worker();
                    for _ in 0..6 {
                        let (ended, _) = runner.container_step(shell_step("echo undisturbed"));
                        assert!(ended.success().stdout().ends_with("undisturbed\n"));
                    }
                });
            }
            scope.spawn(|| {
                while running.load(Ordering::Relaxed) > 0 {
                    installation.admin(&["prune"]).success();
                }
            });
        });
        before.check_live(installation, "a job");
    });
}

struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn job(installation: &Installation<'_>, number: usize) {
    let mut runner = runner(installation, &format!("runner-{number}"));
    runner.prepare(runner.job_container("node:22"), &[redis()]);
    for step in 0..4 {
        let ping =
            format!("echo {number}.{step}; printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379");
        let ended = runner.run(&ping).success();
        assert_eq!(ended.stdout(), format!("{number}.{step}\n+PONG\r\n"));
    }
    let (ended, _) = runner.container_step(shell_step(&format!("echo action {number}")));
    assert!(ended.success().stdout().ends_with(&format!("action {number}\n")));
    runner.cleanup();
}

fn killed(installation: &Installation<'_>) {
    let mut runner = runner(installation, &format!("runner-{KILLED}"));
    for delay in [40, 80, 160, 320] {
        let args = json!({"container": runner.job_container("node:22"), "services": [redis()]});
        let call = runner.start("prepare_job", args);
        call.kill_after(Duration::from_millis(delay));
        runner.cleanup();
    }
    runner.prepare(runner.job_container("node:22"), &[redis()]);
    let mut call = runner.start_run("echo started; while :; do :; done");
    call.wait_for_line("started");
    call.kill_after(Duration::ZERO);
    let ids = containers(installation);
    let state = runner.state.to_string();
    let own: Vec<_> = ids.into_iter().filter(|id| state.contains(id.as_str())).collect();
    assert_eq!(own.len(), 2, "{state}");
    runner.cleanup();
    no_cgroup_of(&own);
}
