//! Steps that are cancelled: nothing of them is alive when the next begins.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::setup::{runner, with_each_runtime};
use crate::steps::{LIST, MARKED};
use crate::support::github_runner::{Runner, merge};
use crate::support::leftovers::Snapshot;

/// Steps of all sorts, each of which says `started` once it is what it is.
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

/// Counts processes by their words: the environment of another user's is not to be read.
const OTHERS: &str = "grep -l '[s]tarted' /proc/[0-9]*/cmdline | wc -l";

/// How a step is ended: as the runner does, or by killing the hook alone.
const WAYS: [&str; 2] = ["cancel", "kill"];

#[test]
fn nothing_of_a_cancelled_step_is_alive_when_the_next_begins() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let limited = json!({"createOptions": "--pids-limit 256"});
        runner.prepare(merge(runner.job_container("node:22"), limited), &[]);
        runner.run("true").success();
        let before = Snapshot::take(installation);
        for (name, script) in SCRIPTS {
            for way in WAYS {
                let took = end(&runner, script, way);
                // Long for a busy machine; the runner's own patience is 10 s.
                assert!(took < Duration::from_secs(30), "{name}, {way}: {took:?}");
                let seen = runner.run(&format!("{LIST}; {OTHERS}")).success();
                assert_eq!(seen.stdout(), "0\n", "{name}, {way}");
                before.check_live(installation, &format!("{name}, {way}"));
            }
        }
        runner.cleanup();
    });
}

/// Runs a step until it has started, and ends it; returns how long that took.
fn end(runner: &Runner<'_>, script: &str, way: &str) -> Duration {
    let mut call = runner.start_run(&format!("{MARKED}\n{script}\n"));
    call.wait_for_line("started");
    let began = Instant::now();
    match way {
        "cancel" => {
            let (ended, signals) = call.cancel();
            // The hook itself is not killed: it ends the step in time.
            assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        }
        _ => call.kill_after(Duration::ZERO),
    }
    began.elapsed()
}

#[test]
fn a_step_after_one_that_was_killed_waits_until_that_is_dead() {
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
