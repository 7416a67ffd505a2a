//! Jobs that a client finds after the server was restarted.

use std::fs;

use oci_hooks_testsupport::program::wait_until;
use rustix::process::Signal;
use step_runner::wire::document::{FollowStepsRequest, StatusRequest};
use step_runner::wire::proto::step_result::Status as JobStatus;
use step_runner::wire::proto::{self, StepResult};
use tonic::Code;

use crate::service::setup::{ServerFixture, block_on, close, log, output, status};
use crate::service::steps::rest;

/// Everything that clients can find out about a job.
#[derive(Debug, PartialEq)]
struct JobView {
    status: proto::Status,
    exit_code: i32,
    log: Vec<u8>,
    results: Vec<StepResult>,
}

impl JobView {
    async fn of(server: &ServerFixture, id: &str) -> Self {
        let (mut gitlab, mut document) = (server.gitlab(), server.document());
        let request = FollowStepsRequest { id: id.to_owned(), offset: 0 };
        let results = rest(document.follow_steps(request).await.unwrap().into_inner()).await;
        let jobs = document.status(StatusRequest { id: id.to_owned() }).await.unwrap();
        JobView {
            log: log(&mut gitlab, id, 0).await.unwrap(),
            status: status(&mut gitlab, id).await.unwrap(),
            exit_code: jobs.into_inner().jobs[0].exit_code,
            results,
        }
    }
}

#[test]
fn finished_jobs_survive_a_stop_and_a_crash_of_the_server() {
    block_on(async {
        let mut server = ServerFixture::start();
        let file = proto::Variable {
            key: "F".to_owned(),
            value: "of the file".to_owned(),
            file: true,
            ..proto::Variable::default()
        };
        let job = proto::Job { variables: vec![file], ..proto::Job::default() };
        let script = "echo x >> ran; echo hello; cat ${{ vars.F }}; exit 3";
        let request = proto::RunRequest { job: Some(job), ..server.script("1", script) };
        let mut client = server.gitlab();
        client.run(request.clone()).await.unwrap();
        client.run(server.script("closed", "true")).await.unwrap();
        output(&mut client, "1").await;
        close(&mut client, "closed").await;
        let before = JobView::of(&server, "1").await;
        assert_eq!((before.status.status(), before.exit_code), (JobStatus::Failure, 3));
        assert_eq!(before.results.len(), 2);

        for signal in [Signal::TERM, Signal::KILL, Signal::KILL] {
            server.signal(signal);
            assert_eq!(server.wait_for_exit().success(), signal == Signal::TERM);
            server.restart();
            assert_eq!(server.secret_files(), <[std::path::PathBuf; 0]>::default());
            assert_eq!(JobView::of(&server, "1").await, before);
            let mut client = server.gitlab();
            let rest = log(&mut client, "1", 40).await.unwrap();
            assert_eq!(rest, before.log[40..]);
            // The id is still taken: steps do not run twice.
            client.run(request.clone()).await.unwrap();
            assert_eq!(fs::read_to_string(server.work_dir().join("ran")).unwrap(), "x\n");
            let error = status(&mut client, "closed").await.unwrap_err();
            assert_eq!(error.message(), "no job with id \"closed\"");
        }
        let mut client = server.gitlab();
        close(&mut client, "1").await;
        assert_eq!(server.files(), <[std::path::PathBuf; 0]>::default());
        assert_eq!(status(&mut client, "1").await.unwrap_err().code(), Code::Unknown);
    });
}

#[test]
fn job_that_ran_when_the_server_was_killed_is_lost() {
    block_on(async {
        let mut server = ServerFixture::start();
        let mut client = server.gitlab();
        client.run(server.script("1", "sleep 1000")).await.unwrap();
        let request = proto::FollowLogsRequest { id: "1".to_owned(), offset: 0 };
        let mut stream = client.follow_logs(request).await.unwrap().into_inner();
        let log = stream.message().await.unwrap().unwrap().data;
        server.signal(Signal::KILL);
        server.wait_for_exit();
        server.restart();

        let lost = JobView::of(&server, "1").await;
        assert_eq!((lost.status.status(), lost.exit_code), (JobStatus::Failure, 1));
        assert_eq!(lost.status.message, "job lost: its server ended while it ran");
        assert!(lost.status.start_time.is_some() && lost.status.end_time.is_some());
        assert_eq!(lost.log, log);

        // Another restart does not change the end time of a job.
        server.signal(Signal::KILL);
        server.wait_for_exit();
        server.restart();
        assert_eq!(JobView::of(&server, "1").await, lost);
    });
}

#[test]
fn jobs_cancelled_by_the_end_of_their_server_are_not_lost() {
    block_on(async {
        let mut server = ServerFixture::start();
        let mut client = server.gitlab();
        client.run(server.script("1", "touch runs; sleep 1000")).await.unwrap();
        wait_until("the job runs", || server.work_dir().join("runs").exists());
        server.signal(Signal::TERM);
        assert!(server.wait_for_exit().success());
        server.restart();
        let status = status(&mut server.gitlab(), "1").await.unwrap();
        assert_eq!(status.status(), JobStatus::Cancelled);
        assert!(status.message.starts_with("job cancelled ("), "{}", status.message);
    });
}

#[test]
fn jobs_of_an_earlier_server_are_pruned_too() {
    block_on(async {
        let mut server = ServerFixture::start();
        let mut client = server.gitlab();
        client.run(server.script("1", "true")).await.unwrap();
        output(&mut client, "1").await;
        server.signal(Signal::KILL);
        server.wait_for_exit();
        server.restart_with(&["--stale-after", "1ms"]);
        wait_until("its files are gone", || server.files().is_empty());
        assert!(status(&mut server.gitlab(), "1").await.is_err());
    });
}

#[test]
fn results_with_secrets_in_plain_text_do_not_outlive_their_server() {
    block_on(async {
        let mut server = ServerFixture::with(&["--show-secrets"], &[]);
        for signal in [Signal::TERM, Signal::KILL] {
            let mut client = server.gitlab();
            client.run(server.script("1", "true")).await.unwrap();
            output(&mut client, "1").await;
            server.signal(signal);
            server.wait_for_exit();
            server.restart();
            assert_eq!(server.files(), <[std::path::PathBuf; 0]>::default());
            assert!(status(&mut server.gitlab(), "1").await.is_err());
        }
    });
}
