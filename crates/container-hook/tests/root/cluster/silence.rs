//! Containers that do not answer during a step: a lost node looks like this for minutes.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use oci_hooks_testsupport::api_proxy::{ConnectionCut, ErrorResponse};
use oci_hooks_testsupport::program;
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::cancelled::{runs_sleep, sleep_process};
use crate::cluster::setup::{NamespaceHook, cluster};

/// Maximum time until silence is reported.
const SOON: Duration = Duration::from_secs(60);

/// Returns all processes in the container of a process, by their cgroup.
fn processes_beside(pid: i32) -> Vec<Pid> {
    let cgroup = |pid: &Path| fs::read(pid.join("cgroup")).ok();
    let own = cgroup(&Path::new("/proc").join(pid.to_string())).unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let same = entries.filter(|path| cgroup(path).as_ref() == Some(&own));
    let number = |path: &Path| path.file_name()?.to_str()?.parse().ok().and_then(Pid::from_raw);
    same.filter_map(|path| number(&path)).collect()
}

#[test]
fn container_that_does_not_answer_is_reported_and_may_answer_again() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("silent");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let mut call = runner.start_run("echo begun; sleep 71005 || echo goes on");
    call.wait_for_line("begun");
    program::wait_until("the step's process", || runs_sleep("71005"));
    let all = processes_beside(sleep_process("71005").unwrap());
    let send = |signal| all.iter().for_each(|pid| kill_process(*pid, signal).unwrap());
    let stopped = Instant::now();
    send(Signal::STOP);
    call.wait_for_line("the job container has not answered for ");
    assert!(stopped.elapsed() < SOON, "{:?}", stopped.elapsed());
    send(Signal::CONT);
    call.wait_for_line("the job container answers again");
    let sleep = Pid::from_raw(sleep_process("71005").unwrap()).unwrap();
    kill_process(sleep, Signal::KILL).unwrap();
    let said = call.wait().success().log();
    let state = "the cluster reports no problem of pod silent-workflow-";
    assert!(
        said.contains(state) && said.contains(" on node ") && said.contains("goes on"),
        "{said}"
    );
    runner.cleanup();
}

#[test]
fn step_of_a_lost_container_ends_after_the_time_of_the_settings() {
    let cluster = cluster();
    let mut pods = NamespaceHook::with(&cluster, "[kubernetes]\nlost-timeout = \"20s\"\n");
    pods.use_proxy();
    let mut runner = pods.runner("lost");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let mut call = runner.start_run("echo begun; sleep 71006");
    call.wait_for_line("begun");
    let lost = Instant::now();
    // As if the API server could not reach the node.
    pods.proxy().refuse(1000, "/exec", ErrorResponse { status: 500, retry_after: None });
    pods.proxy().cut_connections(ConnectionCut::Reset);
    call.wait_for_line("the job container has not answered for ");
    assert!(lost.elapsed() < SOON, "{:?}", lost.elapsed());
    let said = call.wait().failure();
    // On a busy machine, the stream may be given up first.
    let ends = ["has not answered for 2", "has not been reachable for 2"];
    assert!(ends.iter().any(|end| said.contains(end)), "{said}");
    assert!(lost.elapsed() < 3 * SOON, "{:?}", lost.elapsed());
    // The agent ends the step too.
    program::wait_until("the end of the step's process", || !runs_sleep("71006"));
    runner.cleanup();
}
