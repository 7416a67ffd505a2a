//! Connections that are lost while a step runs: it goes on, runs once, and nothing of what it writes is
//! missing or comes twice.

use std::time::{Duration, Instant};

use crate::setup::{Pods, cluster, cycles};
use crate::support::api_proxy::{Cut, Refusal};

/// Writes for two seconds, and notes that it ran.
const SCRIPT: &str = "echo once >>/tmp/ran; i=0; while [ $i -lt 40 ]; do \
    echo \"line $i of the step\"; echo \"note $i\" >&2; i=$((i + 1)); sleep 0.05; done; exit 9";

/// How many jobs share the cuts, each through a proxy of its own.
const JOBS: u32 = 4;

/// What the step above writes.
pub(crate) fn check(ended: crate::support::call::Ended, context: &str) {
    let lines = |what: &dyn Fn(u32) -> String| (0..40).map(what).collect::<String>();
    assert_eq!(ended.stdout(), lines(&|i| format!("line {i} of the step\n")), "{context}");
    assert_eq!(ended.stderr(), lines(&|i| format!("note {i}\n")), "{context}");
    ended.code(9);
}

/// Runs the step above, with a fault so long after its first line.
pub(crate) fn run_with(pods: &Pods<'_>, name: &str, faults: &[(Duration, &dyn Fn())]) {
    let mut runner = pods.runner(name);
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    for (at, fault) in faults {
        let mut call = runner.start_run(SCRIPT);
        call.wait_for_line("line 0 ");
        std::thread::park_timeout(*at);
        fault();
        check(call.wait(), &format!("{name}, fault after {at:?}"));
    }
    let ran = runner.run("cat /tmp/ran; rm /tmp/ran").success().stdout();
    assert_eq!(ran.lines().count(), faults.len(), "{name}: it ran as often");
    runner.cleanup();
}

#[test]
fn a_connection_that_is_cut_at_every_tenth_of_a_second_of_a_step_loses_nothing() {
    let cluster = cluster();
    let count = cycles(20);
    std::thread::scope(|scope| {
        for job in 0..JOBS {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut pods = Pods::new(cluster);
                pods.use_proxy();
                let cut = |how| {
                    let proxy = pods.proxy();
                    move || proxy.cut(how)
                };
                let cuts = [cut(Cut::Reset), cut(Cut::Closed), cut(Cut::Said)];
                let faults: Vec<(Duration, &dyn Fn())> = (0..count)
                    .filter(|cycle| cycle % JOBS == job)
                    .map(|cycle| {
                        let how = &cuts[(cycle / JOBS % 3) as usize];
                        (Duration::from_millis(u64::from(cycle % 20) * 100), how as &dyn Fn())
                    })
                    .collect();
                run_with(&pods, &format!("cut-{job}"), &faults);
            });
        }
    });
}

#[test]
fn a_connection_that_freezes_is_given_up_and_another_one_goes_on() {
    let cluster = cluster();
    let mut pods = Pods::new(&cluster);
    pods.use_proxy();
    let mut runner = pods.runner("frozen");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let mut call = runner.start_run(SCRIPT);
    call.wait_for_line("line 5 ");
    let begin = Instant::now();
    pods.proxy().freeze();
    // Longer than an agent that lives says nothing.
    std::thread::park_timeout(Duration::from_secs(24));
    pods.proxy().thaw();
    check(call.wait(), "frozen");
    assert!(begin.elapsed() < Duration::from_secs(60));
    assert_eq!(runner.run("cat /tmp/ran").success().stdout(), "once\n");
    runner.cleanup();
}

#[test]
fn a_server_that_asks_for_patience_gets_it() {
    let cluster = cluster();
    let mut pods = Pods::new(&cluster);
    pods.use_proxy();
    let proxy = pods.proxy();
    let mut runner = pods.runner("patient");
    let busy = Refusal { status: 429, retry_after: Some(2) };
    let broken = |status| Refusal { status, retry_after: None };
    proxy.refuse(1, "POST /pods", busy);
    proxy.refuse(1, "POST /pods", broken(503));
    let begin = Instant::now();
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    assert_eq!(proxy.refusals_left(), 0);
    assert!(begin.elapsed() >= Duration::from_secs(2), "it came back before it was to");
    proxy.refuse(2, "/exec", broken(500));
    runner.run("true").success();
    proxy.refuse(1, "DELETE ", broken(500));
    runner.cleanup();
    assert_eq!(proxy.refusals_left(), 0);
    pods.check_gone("patient");
}
