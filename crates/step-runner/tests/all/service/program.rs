//! The commands around the server.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use hyper_util::rt::TokioIo;
use oci_hooks_testsupport::program::{DEADLINE, require_root, run, temporary_directory, wait};
use rustix::process::{Signal, kill_process};
use step_runner::wire::proto;
use step_runner::wire::proto::step_runner_client::StepRunnerClient;

use crate::service::setup::{PROGRAM, ServerFixture, block_on};

#[test]
fn proxy_ends_with_its_input_without_output_of_its_own() {
    let server = ServerFixture::start();
    let mut proxy = Command::new(PROGRAM);
    proxy.arg("proxy").arg("--socket").arg(server.socket());
    let done = run(&mut proxy);
    assert!(done.status.success());
    assert_eq!(done.stderr, "");
    // A server may send its HTTP/2 settings first.
    assert!(done.stdout.is_empty() || done.stdout.starts_with("\0\0"), "{:?}", done.stdout);
}

/// A gRPC client announces that it leaves: the server closes the connection at once, and then the client
/// closes its pipes.
#[test]
fn the_proxy_ends_quietly_when_its_client_leaves() {
    const RUNS: usize = 1000;
    block_on(async {
        let server = ServerFixture::start();
        let socket = server.socket();
        let run = async |socket: &Path| {
            let mut proxy = tokio::process::Command::new(PROGRAM);
            proxy.arg("proxy").arg("--socket").arg(socket).kill_on_drop(true);
            proxy.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut proxy = proxy.spawn().unwrap();
            let pipes = tokio::io::join(proxy.stdout.take().unwrap(), proxy.stdin.take().unwrap());
            let mut pipes = Some(TokioIo::new(pipes));
            let connect = tower::service_fn(move |_| {
                let pipes = pipes.take();
                async move { pipes.ok_or_else(|| std::io::Error::other("connected twice")) }
            });
            let endpoint = tonic::transport::Endpoint::from_static("http://proxy");
            let channel = endpoint.connect_with_connector(connect).await.unwrap();
            let mut client = StepRunnerClient::new(channel);
            client.status(proto::StatusRequest::default()).await.unwrap();
            drop(client);
            proxy.wait_with_output().await.unwrap()
        };
        // Enough at once to keep both CPUs busy.
        let workers = (0..4).map(|_| {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut loud = Vec::new();
                for _ in 0..RUNS / 4 {
                    let done = run(&socket).await;
                    if !done.status.success() || !done.stderr.is_empty() {
                        loud.push(done);
                    }
                }
                loud
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            let loud = worker.await.unwrap();
            assert!(loud.is_empty(), "{} of {}: {:?}", loud.len(), RUNS / 4, loud[0]);
        }
    });
}

#[test]
fn proxy_ends_when_the_server_is_gone() {
    for signal in [Signal::TERM, Signal::KILL] {
        let mut server = ServerFixture::start();
        let mut proxy = Command::new(PROGRAM);
        proxy.arg("proxy").env("STEP_RUNNER_SOCKET", server.socket());
        proxy.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = proxy.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        // The server's answer shows that the proxy is connected.
        let mut stdout = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut stdout, &mut [0; 9]).unwrap();
        server.signal(signal);
        assert_eq!(server.wait_for_exit().success(), signal == Signal::TERM);
        assert_eq!(wait(child, DEADLINE).expect("the proxy stays").code(), Some(1));
        drop(input);
    }
}

#[test]
fn proxy_waits_for_a_starting_server() {
    let mut server = ServerFixture::start();
    server.signal(Signal::TERM);
    assert!(server.wait_for_exit().success());
    let mut proxy = Command::new(PROGRAM);
    proxy.args(["proxy", "--wait", "1h", "--socket"]).arg(server.socket());
    let mut child = proxy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    server.restart();
    let mut stdout = child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut stdout, &mut [0; 9]).unwrap();
    drop(input);
    assert!(wait(child, DEADLINE).expect("the proxy stays").success());
}

#[test]
fn serve_creates_the_socket_in_an_existing_directory() {
    let dir = temporary_directory();
    let tmp = temporary_directory();
    let serve = |at: &str| {
        let mut command = Command::new(PROGRAM);
        command.env_clear().env("TMPDIR", tmp.path()).args(["serve", at, "--", "/bin/true"]);
        run(&mut command)
    };
    assert_eq!(
        serve("/no/such").failure(),
        "error: initializing step-runner: invalid socket dir /no/such\n"
    );
    assert_eq!(
        serve("  ").failure(),
        "error: initializing step-runner: invalid empty socket dir\n"
    );
    let done = serve(dir.path().to_str().unwrap());
    let socket = dir.path().join("step-runner.sock");
    let ready = format!("step-runner is listening on socket {}\n", socket.display());
    assert_eq!((done.status.code(), done.stderr), (Some(0), ready));
}

#[test]
fn signal_reaches_the_companion_command_whose_code_is_returned() {
    let tmp = temporary_directory();
    for (script, grace, code) in [
        ("trap 'exit 42' TERM; echo up; while :; do sleep 0.02; done", "1h", 42),
        ("trap '' TERM; echo up; while :; do sleep 0.02; done", "300ms", 128 + 9),
    ] {
        let mut serve = Command::new(PROGRAM);
        serve.env_clear().env("TMPDIR", tmp.path()).env("PATH", "/usr/bin:/bin");
        serve.args(["serve", "--grace", grace, "--", "sh", "-c", script]);
        let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut stdout, &mut [0; 3]).unwrap();
        kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
        assert_eq!(wait(child, DEADLINE).expect("it stays").code(), Some(code));
    }
}

#[test]
fn completions_are_for_this_program() {
    let script = run(Command::new(PROGRAM).args(["completions", "bash"])).success();
    assert!(script.contains("complete ") && script.contains("step-runner"), "{script}");
}

#[test]
fn help_version_and_completions_work_without_proc() {
    require_root();
    let script = r#"umount -l /proc && "$0" --version && "$0" run --help && "$0" completions bash"#;
    let mut program = Command::new("unshare");
    let said = run(program.args(["--mount", "sh", "-c", script, PROGRAM])).success();
    assert!(said.starts_with(concat!("step-runner ", env!("CARGO_PKG_VERSION"))), "{said}");
}
