//! Connections lost while a step runs: the step continues, runs once, and no output is lost or duplicated.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use oci_hooks_testsupport::api_proxy::{ConnectionCut, ErrorResponse};
use oci_hooks_testsupport::program;

use crate::cluster::setup::{NamespaceHook, cluster, cycles};

/// Prints for two seconds, and records each run.
const SCRIPT: &str = "echo once >>/tmp/ran; i=0; while [ $i -lt 40 ]; do \
    echo \"line $i of the step\"; echo \"note $i\" >&2; i=$((i + 1)); sleep 0.05; done; exit 9";

/// Number of jobs that share the cuts, each with its own proxy.
const JOBS: u32 = 4;

/// Checks the output of the step above.
pub(crate) fn check(ended: oci_hooks_testsupport::call::EndedCall, context: &str) {
    let lines = |what: &dyn Fn(u32) -> String| (0..40).map(what).collect::<String>();
    // On a busy machine, the hook may report that the container does not answer.
    let of_hook = |line: &&str| line.contains("the job container ");
    let stdout: String =
        ended.stdout().split_inclusive('\n').filter(|line| !of_hook(line)).collect();
    assert_eq!(stdout, lines(&|i| format!("line {i} of the step\n")), "{context}");
    assert_eq!(ended.stderr(), lines(&|i| format!("note {i}\n")), "{context}");
    ended.code(9);
}

/// Runs the step above once for each fault, which occurs the given time after the first line.
pub(crate) fn run_with(pods: &NamespaceHook<'_>, name: &str, faults: &[(Duration, &dyn Fn())]) {
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

/// Checks that a cut ends a connection: the test below would pass without any cut.
#[test]
fn proxy_cuts_connections() {
    let cluster = cluster();
    let mut pods = NamespaceHook::new(&cluster);
    pods.use_proxy();
    let proxy = pods.proxy();
    let address = proxy.url().replace("https://", "");
    for (how, expected) in
        [(ConnectionCut::Reset, Err(ErrorKind::ConnectionReset)), (ConnectionCut::Closed, Ok(0))]
    {
        let mut client = TcpStream::connect(&address).unwrap();
        // Part of a ClientHello: the proxy waits for the rest.
        client.write_all(&[0x16, 3, 1, 0, 200]).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut read = || client.read(&mut [0]).map_err(|error: io::Error| error.kind());
        assert_eq!(read(), Err(ErrorKind::WouldBlock));
        // The proxy may not have accepted the connection yet.
        program::wait_until("the end of the connection", || {
            proxy.cut_connections(how);
            read() == expected
        });
    }
}

#[test]
fn connection_cut_every_tenth_of_a_second_loses_nothing() {
    let cluster = cluster();
    let count = cycles(20);
    std::thread::scope(|scope| {
        for job in 0..JOBS {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut pods = NamespaceHook::new(cluster);
                pods.use_proxy();
                let cut = |how| {
                    let proxy = pods.proxy();
                    move || proxy.cut_connections(how)
                };
                let cuts = [
                    cut(ConnectionCut::Reset),
                    cut(ConnectionCut::Closed),
                    cut(ConnectionCut::Said),
                ];
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
fn frozen_connection_is_replaced() {
    let cluster = cluster();
    let mut pods = NamespaceHook::new(&cluster);
    pods.use_proxy();
    let mut runner = pods.runner("frozen");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let mut call = runner.start_run(SCRIPT);
    call.wait_for_line("line 5 ");
    let begin = Instant::now();
    pods.proxy().freeze();
    // Exceeds the interval in which a live agent sends data.
    std::thread::park_timeout(Duration::from_secs(24));
    pods.proxy().thaw();
    let ended = call.wait();
    assert!(ended.log().contains("the job container has not answered"), "{}", ended.log());
    check(ended, "frozen");
    assert!(begin.elapsed() < Duration::from_secs(60));
    assert_eq!(runner.run("cat /tmp/ran").success().stdout(), "once\n");
    runner.cleanup();
}

#[test]
fn retry_after_of_the_api_server_is_respected() {
    let cluster = cluster();
    let mut pods = NamespaceHook::new(&cluster);
    pods.use_proxy();
    let proxy = pods.proxy();
    let mut runner = pods.runner("patient");
    let busy = ErrorResponse { status: 429, retry_after: Some(2) };
    let broken = |status| ErrorResponse { status, retry_after: None };
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
