//! Cancelled steps: none of their processes are alive when the next step begins.

use std::time::Duration;

use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use serde_json::json;

use crate::runner::setup::{runner, with_each_runtime};
use crate::runner::steps::{LIST, MARKED};

/// Steps of various kinds. Each prints `started` once its processes run.
const SCRIPTS: [(&str, &str); 6] = [
    ("plain loop", "echo started; while :; do sleep 0.1; done"),
    ("deaf loop", "trap '' INT TERM HUP QUIT; echo started; while :; do sleep 0.1; done"),
    (
        "session of its own",
        "setsid sh -c 'trap \"\" INT TERM; echo started; while :; do sleep 0.1; done' & wait",
    ),
    (
        "daemon",
        "(setsid sh -c 'trap \"\" INT TERM HUP; (while :; do sleep 0.1; done) >/dev/null 2>&1 &' &)\n\
         echo started; sleep 1000",
    ),
    (
        "another user's tree",
        "echo nobody:x:65534:65534::/:/bin/sh >>/etc/passwd; su nobody -s /bin/sh -c 'sh -c \"sh -c \\\"echo started; sleep 1000; true\\\"; true\"; true'; true",
    ),
    (
        "forks",
        "trap '' INT TERM\necho started\n\
         while :; do (trap '' INT TERM; (sleep 0.3 &); sleep 0.2; true) & sleep 0.02; done",
    ),
];

/// Counts processes by command line, because the environment of another user's process is not readable.
const OTHERS: &str = "grep -l '[s]tarted' /proc/[0-9]*/cmdline | wc -l";

/// Ways to end a step: as the runner does, or by killing only the hook.
const WAYS: [&str; 2] = ["cancel", "kill"];

#[test]
fn cancelled_step_is_dead_before_the_next_begins() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let limited = json!({"createOptions": "--pids-limit 256"});
        runner.prepare(merge(runner.job_container("node:22"), limited), &[]);
        runner.run("true").success();
        let before = LeftoverSnapshot::take(installation);
        for (name, script) in SCRIPTS {
            for way in WAYS {
                end(&runner, script, way);
                let seen = runner.run(&format!("{LIST}; {OTHERS}")).success();
                assert_eq!(seen.stdout(), "0\n", "{name}, {way}");
                before.check_live(installation, &format!("{name}, {way}"));
            }
        }
        runner.cleanup();
    });
}

/// Runs a step until it has started, and ends it.
fn end(runner: &GithubRunner<'_>, script: &str, way: &str) {
    let mut call = runner.start_run(&format!("{MARKED}\n{script}\n"));
    call.wait_for_line("started");
    match way {
        "cancel" => {
            let (ended, signals) = call.cancel();
            // The hook ends the step in time and need not be killed.
            assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        }
        _ => call.kill_after(Duration::ZERO),
    }
}

#[test]
fn step_waits_until_a_killed_predecessor_is_dead() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        for _ in 0..10 {
            let script = "trap '' INT TERM; for i in 1 2 3 4 5 6 7 8; do sh -c 'while :; do :; done' & done; \
                          echo started; wait";
            let mut call = runner.start_run(&format!("{MARKED}\n{script}"));
            call.wait_for_line("started");
            call.kill_after(Duration::ZERO);
            let seen = runner.run(LIST).success();
            assert_eq!(seen.stdout(), "");
        }
        runner.cleanup();
    });
}
