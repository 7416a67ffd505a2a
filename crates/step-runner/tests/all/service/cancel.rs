//! Cancelled jobs, and jobs that reach their time limit.

use std::fs;
use std::time::Duration;

use oci_hooks_testsupport::program::wait_until;
use step_runner::client::{ServerAddress, StepClient};
use step_runner::wire::proto;
use step_runner::wire::proto::step_result::Status as JobStatus;
use tonic::Code;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;

use crate::service::setup::{ServerFixture, block_on, close, log, output, status};

/// A command that creates a file when it runs, and exits with a code at SIGTERM.
const WAITS: &str = "trap 'echo cleaned; exit 7' TERM; touch up; while :; do sleep 0.05; done";

/// Options with which no command or cleanup step is killed, even on a busy machine.
const PATIENT: [&str; 4] = ["--grace", "1h", "--cleanup", "1h"];

/// Parses the exit code from a message as GitLab's runner does.
fn code_for_the_runner(message: &str) -> Option<i64> {
    let (_, code) = message.split_once("exit status")?;
    code.trim().parse().ok()
}

async fn cancel(server: &ServerFixture, id: &str) -> Result<(), tonic::Status> {
    let request = proto::CancelRequest { id: id.to_owned() };
    server.gitlab().cancel(request).await.map(|_| ())
}

#[test]
fn cancelled_job_cleans_up_and_remains_until_closed() {
    block_on(async {
        let server = ServerFixture::with(&PATIENT, &[]);
        let mut client = server.gitlab();
        let waits = serde_json::to_string(WAITS).unwrap();
        let run = format!(
            "  - {{name: a, script: {waits}}}\n  - {{name: never, script: echo never}}\n  \
             - {{name: c, if: cancelled(), script: 'while [ ! -e gate ]; do sleep 0.02; done; echo c'}}\n"
        );
        client.run(server.request("1", &run)).await.unwrap();
        wait_until("the job runs", || server.work_dir().join("up").exists());
        let follow = tokio::spawn({
            let mut client = client.clone();
            async move { output(&mut client, "1").await.0 }
        });
        // A cancel request returns before the job's end, and may be repeated.
        for _ in 0..5 {
            cancel(&server, "1").await.unwrap();
        }
        assert_eq!(status(&mut client, "1").await.unwrap().status(), JobStatus::Running);
        fs::write(server.work_dir().join("gate"), "").unwrap();
        let said = follow.await.unwrap();
        assert_eq!(said, "Running step name=a\ncleaned\nRunning step name=c\nc\n");
        for _ in 0..2 {
            let job = status(&mut client, "1").await.unwrap();
            assert_eq!(job.status(), JobStatus::Cancelled);
            assert_eq!(job.message, "job cancelled (step \"a\": exec: exit status 7)");
            assert_eq!(code_for_the_runner(&job.message), None);
            cancel(&server, "1").await.unwrap();
        }
        let log = log(&mut client, "1", 0).await.unwrap();
        assert!(!log.is_empty());
        close(&mut client, "1").await;
        assert_eq!(status(&mut client, "1").await.unwrap_err().code(), Code::Unknown);
    });
}

#[test]
fn closing_a_cancelling_job_lets_it_clean_up() {
    block_on(async {
        let server = ServerFixture::with(&PATIENT, &[]);
        let mut client = server.gitlab();
        let script = WAITS.replace("echo cleaned", "sleep 0.5; touch cleaned");
        client.run(server.script("1", &script)).await.unwrap();
        wait_until("the job runs", || server.work_dir().join("up").exists());
        cancel(&server, "1").await.unwrap();
        close(&mut client, "1").await;
        assert!(server.work_dir().join("cleaned").exists());
    });
}

#[test]
fn ended_job_is_unchanged_by_a_cancellation() {
    block_on(async {
        let server = ServerFixture::start();
        let client = StepClient::new(ServerAddress::Socket(server.socket()));
        for (id, script, ended) in
            [("1", "true", JobStatus::Success), ("2", "exit 3", JobStatus::Failure)]
        {
            client.run(server.script(id, script)).await.unwrap();
            log(&mut server.gitlab(), id, 0).await.unwrap();
            client.cancel(id).await.unwrap();
            assert_eq!(status(&mut server.gitlab(), id).await.unwrap().status(), ended);
        }
        let error = client.cancel("3").await.unwrap_err();
        assert_eq!((error.code(), &*error.to_string()), (Code::Unknown, "no job with id \"3\""));
        let error = client.cancel("").await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    });
}

/// Calls a method with a custom message.
async fn call<M>(
    server: &ServerFixture,
    path: &'static str,
    message: M,
) -> Result<(), tonic::Status>
where
    M: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(server.channel());
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<M, proto::CancelResponse>::default();
    let path = PathAndQuery::from_static(path);
    grpc.unary(tonic::Request::new(message), path, codec).await.map(|_| ())
}

/// A cancel request of a newer client, with other field numbers.
#[derive(Clone, PartialEq, prost::Message)]
struct RenumberedCancel {
    #[prost(string, tag = "3")]
    id: String,
    #[prost(string, tag = "9")]
    why: String,
}

#[test]
fn id_is_found_whatever_its_field_number() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        client.run(server.script("1", "sleep 1000")).await.unwrap();
        let path = "/proto.StepRunner/Cancel";
        let both = RenumberedCancel { id: "1".to_owned(), why: "1".to_owned() };
        for unclear in [both, RenumberedCancel::default()] {
            let error = call(&server, path, unclear).await.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        }
        let one = RenumberedCancel { id: "1".to_owned(), ..RenumberedCancel::default() };
        call(&server, path, one).await.unwrap();
        output(&mut client, "1").await;
        assert_eq!(status(&mut client, "1").await.unwrap().status(), JobStatus::Cancelled);
    });
}

/// A request with the time limit that GitLab's runner sends, in a field with another number.
#[derive(Clone, PartialEq, prost::Message)]
struct LimitedRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "6")]
    steps: String,
    #[prost(message, tag = "8")]
    timeout: Option<prost_types::Duration>,
}

#[test]
fn time_limit_of_the_client_applies_unless_ignored() {
    block_on(async {
        let limited = |server: &ServerFixture, id: &str| LimitedRequest {
            id: id.to_owned(),
            steps: server
                .script(
                    "",
                    "trap 'exit 7' TERM; touch up; while [ ! -e gate ]; do sleep 0.02; done",
                )
                .steps,
            timeout: Some(prost_types::Duration { seconds: 4, nanos: 500_000_000 }),
        };
        let server = ServerFixture::with(&PATIENT, &[]);
        let mut client = server.gitlab();
        call(&server, "/proto.StepRunner/Run", limited(&server, "1")).await.unwrap();
        let request = proto::RunRequest {
            timeout: Some(prost_types::Duration { seconds: 4, nanos: 0 }),
            ..server.script("2", "sleep 1000")
        };
        client.run(request).await.unwrap();
        let terminated = "step \"a\": exec: signal: terminated";
        for (id, limit, reason) in
            [("1", "4.5s", "step \"a\": exec: exit status 7"), ("2", "4s", terminated)]
        {
            output(&mut client, id).await;
            let job = status(&mut client, id).await.unwrap();
            assert_eq!(job.status(), JobStatus::Failure);
            let begin =
                format!("job exceeded its maximum run time of {limit}, set by the client (");
            let found = job.message.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(')'));
            // On a busy machine, the time may be over before the trap is set or the step starts.
            let is_up = id == "1" && server.work_dir().join("up").exists();
            let reasons = [reason, terminated, "the job was cancelled"];
            let reasons = if is_up { &reasons[..1] } else { &reasons[..] };
            assert!(found.is_some_and(|found| reasons.contains(&found)), "{}", job.message);
            assert_eq!(code_for_the_runner(&job.message), None);
        }

        let server = ServerFixture::with(&["--client-timeout", "ignore"], &[]);
        let mut client = server.gitlab();
        call(&server, "/proto.StepRunner/Run", limited(&server, "1")).await.unwrap();
        // Exceeds the limit, to show that it is ignored.
        tokio::time::sleep(Duration::from_secs(6)).await;
        fs::write(server.work_dir().join("gate"), "").unwrap();
        output(&mut client, "1").await;
        assert_eq!(status(&mut client, "1").await.unwrap().status(), JobStatus::Success);
    });
}
