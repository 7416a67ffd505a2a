//! The client library with lost connections.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oci_hooks_testsupport::program::DEADLINE;
use rustix::process::Signal;
use step_runner::client::{ClientError, ExecuteOutcome, ServerAddress, StepClient};
use step_runner::wire::proto::step_result::Status;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tonic::Code;

use crate::service::setup::{PROGRAM, ServerFixture, block_on, log, strip_stamps};

fn proxy(socket: &Path) -> ServerAddress {
    let words = [PROGRAM.as_ref(), "proxy".as_ref(), "--socket".as_ref(), socket.as_os_str()];
    ServerAddress::Command(words.map(Into::into).to_vec())
}

#[test]
fn job_runs_over_a_socket_and_over_a_command() {
    block_on(async {
        let server = ServerFixture::start();
        for address in [ServerAddress::Socket(server.socket()), proxy(&server.socket())] {
            let client = StepClient::new(address);
            let mut log = Vec::new();
            let request = server.script("1", "echo hi; echo e >&2; exit 9");
            let outcome = client.execute(request, |bytes| log.extend_from_slice(bytes)).await;
            let ExecuteOutcome { status, message, exit_code, .. } = outcome.unwrap();
            assert_eq!((status, exit_code), (Status::Failure, 9));
            assert_eq!(message, "step \"a\": exec: exit status 9");
            assert_eq!(
                strip_stamps(&log),
                ("Running step name=a\nhi\n".to_owned(), "e\n".to_owned())
            );
            assert_eq!(client.status("").await.unwrap(), []);
            let outcome = client.execute(server.script("1", "true"), |_| {}).await.unwrap();
            assert_eq!((outcome.status, outcome.exit_code), (Status::Success, 0));
        }
    });
}

#[test]
fn log_is_complete_despite_lost_connections() {
    block_on(async {
        let server = ServerFixture::start();
        // Connections through this proxy are cut, each 30 001 bytes later than the previous one.
        let way = server.dirs.path().join("way.sock");
        let listener = UnixListener::bind(&way).unwrap();
        let target = server.socket();
        let connections = Arc::new(AtomicU64::new(0));
        let made = connections.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let limit = 50_000 + 30_001 * made.fetch_add(1, Ordering::Relaxed);
                let server = UnixStream::connect(&target).await.unwrap();
                tokio::spawn(async move {
                    let (mut from_client, mut to_client) = client.into_split();
                    let (from_server, mut to_server) = server.into_split();
                    let up = tokio::spawn(async move {
                        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
                    });
                    let _ = tokio::io::copy(&mut from_server.take(limit), &mut to_client).await;
                    up.abort();
                });
            }
        });
        let client = StepClient::new(ServerAddress::Socket(way));
        let request = server.script("1", "seq 1 20000");
        let mut seen = Vec::new();
        client.run(request).await.unwrap();
        let mut follow = client.follow_log("1", 0);
        while let Some(bytes) = follow.next().await.unwrap() {
            seen.extend(bytes);
        }
        assert_eq!(follow.offset(), seen.len() as u64);
        let whole = log(&mut server.gitlab(), "1", 0).await.unwrap();
        assert!(whole.len() > 500_000);
        assert!(seen == whole, "{} of {} bytes", seen.len(), whole.len());
        assert!(connections.load(Ordering::Relaxed) > 3);
    });
}

#[test]
fn step_results_arrive_once() {
    block_on(async {
        let server = ServerFixture::start();
        let client = StepClient::new(ServerAddress::Socket(server.socket()));
        let run = "  - {name: a, script: 'true'}\n  - {name: b, script: exit 2}\n";
        client.run(server.request("1", run)).await.unwrap();
        let mut steps = client.follow_steps("1", 1);
        let mut names = Vec::new();
        while let Some(result) = steps.next().await.unwrap() {
            names.push(result.step.unwrap().name);
        }
        assert_eq!(names, ["b", ""]);
        let [job] = client.document_status("1").await.unwrap().try_into().unwrap();
        assert_eq!((job.finished, job.exit_code), (true, 2));
    });
}

#[test]
fn lost_job_is_distinguished_from_an_unreachable_server() {
    block_on(async {
        // With this option no job outlives its server.
        let mut forgetful = ServerFixture::with(&["--show-secrets"], &[]);
        let mut server = ServerFixture::start();
        let mut outcomes = Vec::new();
        for server in [&mut forgetful, &mut server] {
            let client = StepClient::new(ServerAddress::Socket(server.socket()));
            let client = client.with_give_up(DEADLINE);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let execution = tokio::spawn({
                let seen = seen.clone();
                let request = server.script("1", "echo up; sleep 1000");
                async move {
                    let see = |bytes: &[u8]| seen.lock().unwrap().extend_from_slice(bytes);
                    client.execute(request, see).await
                }
            });
            while !strip_stamps(&seen.lock().unwrap()).0.ends_with("up\n") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            server.signal(Signal::KILL);
            server.wait_for_exit();
            server.restart();
            outcomes.push(execution.await.unwrap());
        }
        let [Err(error), Ok(outcome)] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert!(matches!(error, ClientError::Lost { id } if id == "1"), "{error}");
        assert_eq!((outcome.status, outcome.exit_code), (Status::Failure, 1));
        assert_eq!(outcome.message, "job lost: its server ended while it ran");

        let client = StepClient::new(ServerAddress::Socket(server.socket()));
        let refused = client.run(server.script("", "true")).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);

        server.signal(Signal::TERM);
        assert!(server.wait_for_exit().success());
        let give_up = Duration::from_millis(200);
        for (address, said) in [
            (ServerAddress::Socket(server.socket()), "cannot reach the server"),
            (
                proxy(&server.socket()),
                "cannot reach the server (stderr of the command that connects: error: dialing: dial unix ",
            ),
        ] {
            let client = StepClient::new(address).with_give_up(give_up);
            loop {
                let error = client.status("").await.unwrap_err();
                assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
                assert!(error.to_string().starts_with("cannot reach the server"), "{error}");
                // The client may notice the end of a command before it reads its message.
                if error.to_string().starts_with(said) {
                    break;
                }
            }
        }
    });
}

#[test]
fn client_waits_for_a_later_server() {
    block_on(async {
        let mut server = ServerFixture::start();
        server.signal(Signal::TERM);
        assert!(server.wait_for_exit().success());
        let client = StepClient::new(ServerAddress::Socket(server.socket()));
        let client = client.with_give_up(DEADLINE);
        let request = server.script("1", "echo up");
        let execution = tokio::spawn(async move { client.execute(request, |_| {}).await });
        // Lets at least one attempt fail.
        tokio::task::yield_now().await;
        server.restart();
        assert_eq!(execution.await.unwrap().unwrap().status, Status::Success);
    });
}

#[test]
fn proxy_explains_the_absence_of_its_server() {
    let server = ServerFixture::start();
    let socket = server.dirs.path().join("none.sock");
    let mut proxy = Command::new(PROGRAM);
    proxy.arg("proxy").arg("--socket").arg(&socket);
    let done = oci_hooks_testsupport::program::run(&mut proxy);
    let expected = format!(
        "error: dialing: dial unix {}: connect: no such file or directory\n",
        socket.display()
    );
    assert_eq!((done.status.code(), &*done.stdout, done.stderr), (Some(1), "", expected));
}
