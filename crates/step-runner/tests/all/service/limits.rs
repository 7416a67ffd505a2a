//! The limit of open files: raised for the server, restored for steps, and reserved for jobs.

use std::fs;

use step_runner::wire::proto::step_result::Status;
use tonic::Code;

use crate::service::setup::{ServerFixture, block_on, close, output, status};

const WAIT: &str = "while [ ! -e go ]; do sleep 0.02; done; echo done";

#[test]
fn steps_have_the_limit_of_open_files_that_the_server_was_started_with() {
    block_on(async {
        let server = ServerFixture::with_file_limit("--nofile=64:4096");
        let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        assert_eq!(line.split_whitespace().nth(3), Some("4096"), "the soft limit is raised");
        let mut client = server.gitlab();
        client.run(server.script("1", "ulimit -Sn; ulimit -Hn")).await.unwrap();
        assert_eq!(output(&mut client, "1").await.0, "Running step name=a\n64\n4096\n");
    });
}

#[test]
fn a_soft_limit_does_not_limit_the_number_of_jobs() {
    block_on(async {
        let server = ServerFixture::with_file_limit("--nofile=20:4096");
        let mut client = server.gitlab();
        let ids: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        for id in &ids {
            client.run(server.script(id, WAIT)).await.unwrap();
        }
        fs::write(server.work_dir().join("go"), "").unwrap();
        for id in &ids {
            assert_eq!(output(&mut client, id).await.0, "Running step name=a\ndone\n");
        }
    });
}

#[test]
fn a_job_without_descriptors_is_rejected_and_accepted_ones_succeed() {
    block_on(async {
        let server = ServerFixture::with_file_limit("--nofile=256");
        let mut client = server.gitlab();
        let mut accepted = Vec::new();
        let error = loop {
            let id = accepted.len().to_string();
            match client.run(server.script(&id, WAIT)).await {
                Ok(_) => accepted.push(id),
                Err(error) => break error,
            }
        };
        assert!(accepted.len() >= 5, "{}", accepted.len());
        assert_eq!(error.code(), Code::ResourceExhausted);
        let expected = format!(
            "too few file descriptors for another job: {} jobs run, and this server may open 256 files: \
             close finished jobs, or raise the server's hard limit of open files",
            accepted.len()
        );
        assert_eq!(error.message(), expected);
        fs::write(server.work_dir().join("go"), "").unwrap();
        for id in &accepted {
            output(&mut client, id).await;
            assert_eq!(status(&mut client, id).await.unwrap().status(), Status::Success);
            close(&mut client, id).await;
        }
        client.run(server.script("again", "true")).await.unwrap();
        output(&mut client, "again").await;
    });
}
