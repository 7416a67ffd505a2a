//! Jobs as clients see them.

use std::time::Duration;

use oci_hooks_testsupport::program::wait_until;
use step_runner::wire::proto::step_result::Status as JobStatus;
use step_runner::wire::{document, proto};
use tonic::Code;

use crate::service::setup::{ServerFixture, block_on, close, log, output, status};

/// Poll interval for the status of a job.
const POLL: Duration = Duration::from_millis(5);

#[test]
fn both_services_show_the_same_jobs() {
    block_on(async {
        let server = ServerFixture::start();
        let (mut gitlab, mut document) = (server.gitlab(), server.document());
        document.run(server.script("1", "echo hi; exit 7")).await.unwrap();
        assert_eq!(output(&mut gitlab, "1").await.0, "Running step name=a\nhi\n");
        let job = status(&mut gitlab, "1").await.unwrap();
        assert_eq!(job.message, "step \"a\": exec: exit status 7");
        let jobs = document.status(document::StatusRequest::default()).await.unwrap();
        let [job] = jobs.into_inner().jobs.try_into().unwrap();
        assert!(job.finished);
        assert_eq!((job.id.as_str(), job.exit_code), ("1", 7));
        assert!(job.start_time.unwrap().seconds <= job.end_time.unwrap().seconds);
        for _ in 0..2 {
            let request = document::FinishRequest { id: "1".to_owned() };
            document.finish(request).await.unwrap();
        }
        assert_eq!(status(&mut gitlab, "1").await.unwrap_err().message(), "no job with id \"1\"");
        let request = document::StatusRequest { id: "1".to_owned() };
        assert_eq!(document.status(request).await.unwrap_err().code(), Code::NotFound);
    });
}

#[test]
fn errors_have_the_codes_of_their_service() {
    block_on(async {
        let server = ServerFixture::start();
        let (mut gitlab, mut document) = (server.gitlab(), server.document());
        let bad = |change: fn(&mut proto::RunRequest)| {
            let mut request = server.script("1", "true");
            change(&mut request);
            request
        };
        let long = "x".repeat(2000);
        let cases = [
            (bad(|r| r.id.clear()), Code::InvalidArgument, Code::InvalidArgument),
            (
                proto::RunRequest { id: long, ..bad(|_| {}) },
                Code::InvalidArgument,
                Code::InvalidArgument,
            ),
            (bad(|r| "]".clone_into(&mut r.steps)), Code::Unknown, Code::InvalidArgument),
            (
                bad(|r| r.work_dir = "/dev/null/x".to_owned()),
                Code::Unknown,
                Code::FailedPrecondition,
            ),
            (
                bad(|r| r.env = [("A".to_owned(), "\0".to_owned())].into()),
                Code::InvalidArgument,
                Code::InvalidArgument,
            ),
            (
                bad(|r| r.job = Some(job(&[("CI_STEPS_LOG_LEVEL", "loud")]))),
                Code::Unknown,
                Code::InvalidArgument,
            ),
        ];
        for (request, by_gitlab, by_document) in cases {
            let error = gitlab.run(request.clone()).await.unwrap_err();
            assert_eq!(error.code(), by_gitlab, "{error}");
            let error = document.run(request).await.unwrap_err();
            assert_eq!(error.code(), by_document, "{error}");
        }
        assert_eq!(server.files(), <[std::path::PathBuf; 0]>::default());
        let all = gitlab.status(proto::StatusRequest::default()).await.unwrap();
        assert_eq!(all.into_inner().jobs, []);
        let negative = proto::FollowLogsRequest { id: "1".to_owned(), offset: -1 };
        gitlab.run(server.script("1", "true")).await.unwrap();
        let error = document.follow_logs(negative).await.unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange);
    });
}

fn job(variables: &[(&str, &str)]) -> proto::Job {
    let variable = |(key, value): &(&str, &str)| proto::Variable {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
        ..proto::Variable::default()
    };
    proto::Job { variables: variables.iter().map(variable).collect(), ..proto::Job::default() }
}

#[test]
fn error_does_not_repeat_long_steps() {
    block_on(async {
        let server = ServerFixture::start();
        let mut request = server.script("1", "true");
        request.steps = format!("[{}", "é".repeat(1 << 20));
        let error = server.gitlab().run(request).await.unwrap_err();
        assert_eq!(error.code(), Code::Unknown);
        assert!(error.message().len() < 4096);
    });
}

#[test]
fn rejected_job_leaves_no_directory() {
    block_on(async {
        let server = ServerFixture::start();
        let dir = server.work_dir().join("a/b");
        let mut request = server.script("1", "true");
        request.steps =
            "spec: {inputs: {a: {type: string}}}\n---\nexec: {command: [pwd]}\n".to_owned();
        request.job = Some(proto::Job {
            build_dir: dir.to_str().unwrap().to_owned(),
            ..proto::Job::default()
        });
        server.gitlab().run(request.clone()).await.unwrap_err();
        assert!(!server.work_dir().join("a").exists());
        request.steps = "{}\n---\nexec: {command: [pwd]}\n".to_owned();
        server.gitlab().run(request).await.unwrap();
        let (out, _) = output(&mut server.gitlab(), "1").await;
        assert_eq!(out, format!("Running step name=pwd\n{}\n", dir.display()));
    });
}

#[test]
fn concurrent_runs_of_one_id_start_one_job() {
    block_on(async {
        let server = ServerFixture::start();
        let mut runs = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let mut client = server.gitlab();
            let request = server.script("1", "echo x >> runs");
            runs.spawn(async move { client.run(request).await.map(drop) });
        }
        for run in runs.join_all().await {
            run.unwrap();
        }
        output(&mut server.gitlab(), "1").await;
        let runs = std::fs::read_to_string(server.work_dir().join("runs")).unwrap();
        assert_eq!(runs, "x\n");
    });
}

#[test]
fn fifty_concurrent_jobs_do_not_mix() {
    block_on(async {
        let server = ServerFixture::start();
        let gate = server.work_dir().join("gate");
        let mut jobs = tokio::task::JoinSet::new();
        for number in 0..50 {
            let mut client = server.gitlab();
            let script = format!(
                "touch here-{number}; while [ ! -e gate ]; do sleep 0.5; done; echo {number}; exit {number}"
            );
            let id = number.to_string();
            let request = server.script(&id, &script);
            jobs.spawn(async move {
                client.run(request).await.unwrap();
                let (out, _) = output(&mut client, &id).await;
                let job = status(&mut client, &id).await.unwrap();
                (number, out, job.message)
            });
        }
        wait_until("all are running", || {
            let entries = std::fs::read_dir(server.work_dir()).unwrap();
            entries.count() == 50
        });
        std::fs::write(gate, "").unwrap();
        for (number, out, message) in jobs.join_all().await {
            assert_eq!(out, format!("Running step name=a\n{number}\n"));
            let expected = match number {
                0 => String::new(),
                _ => format!("step \"a\": exec: exit status {number}"),
            };
            assert_eq!(message, expected);
        }
    });
}

#[test]
fn log_resumes_at_every_offset() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        client.run(server.script("1", "printf 'a\\n\\n\\r\\nb'; echo e >&2")).await.unwrap();
        let whole = log(&mut client, "1", 0).await.unwrap();
        for offset in 0..=whole.len() + 1 {
            let rest = log(&mut client, "1", i64::try_from(offset).unwrap()).await.unwrap();
            assert_eq!(rest, whole.get(offset..).unwrap_or_default(), "{offset}");
        }
    });
}

#[test]
fn closing_a_job_ends_all_its_processes() {
    block_on(async {
        let server = ServerFixture::with(&["--grace", "100ms", "--cleanup", "0s"], &[]);
        let mut client = server.gitlab();
        let script = "trap '' TERM; sleep 1000 & echo $! > pid; wait; sleep 1000";
        client.run(server.script("1", script)).await.unwrap();
        let pid = server.work_dir().join("pid");
        let is_written = || std::fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'));
        wait_until("the job runs", is_written);
        assert_eq!(status(&mut client, "1").await.unwrap().status(), JobStatus::Running);
        let pid = std::fs::read_to_string(&pid).unwrap();
        close(&mut client, "1").await;
        wait_until("its processes are gone", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.is_err() || stat.unwrap().contains(") Z ")
        });
        // On a busy machine, the thread of the job may remove them after the answer.
        wait_until("its files are gone", || server.files().is_empty());
        close(&mut client, "1").await;
    });
}

#[test]
fn follower_of_a_closed_job_gets_the_whole_log() {
    block_on(async {
        let server = ServerFixture::with(&["--grace", "1h"], &[]);
        let mut client = server.gitlab();
        let script = "trap 'echo bye; exit 1' TERM; echo up; while :; do sleep 0.05; done";
        client.run(server.script("1", script)).await.unwrap();
        let request = proto::FollowLogsRequest { id: "1".to_owned(), offset: 0 };
        let mut stream = client.follow_logs(request).await.unwrap().into_inner();
        let mut log = Vec::new();
        while !String::from_utf8_lossy(&log).contains("up\n") {
            log.extend(stream.message().await.unwrap().unwrap().data);
        }
        let closed = tokio::spawn({
            let mut client = client.clone();
            async move { close(&mut client, "1").await }
        });
        while let Some(answer) = stream.message().await.unwrap() {
            log.extend(answer.data);
        }
        assert!(String::from_utf8_lossy(&log).contains("bye\n"));
        closed.await.unwrap();
    });
}

#[test]
fn unclosed_job_is_removed_after_a_time() {
    block_on(async {
        let server = ServerFixture::with(&["--stale-after", "100ms"], &[]);
        let mut client = server.gitlab();
        client.run(server.script("1", "echo x")).await.unwrap();
        while status(&mut client, "1").await.is_ok() {
            tokio::time::sleep(POLL).await;
        }
        wait_until("its files are gone", || server.files().is_empty());
    });
}

#[test]
fn job_exceeding_its_time_limit_is_stopped_and_removed() {
    block_on(async {
        let options = ["--grace", "50ms", "--cleanup", "0s"];
        let stopped = [&options[..], &["--max-runtime", "3s"]].concat();
        let server = ServerFixture::with(&stopped, &[]);
        let mut client = server.gitlab();
        client.run(server.script("1", "echo up; touch up; sleep 1000")).await.unwrap();
        let (out, _) = output(&mut client, "1").await;
        // On a busy machine, the time may be over before the shell prints.
        let expected = "Running step name=a\nup\n";
        let is_up = server.work_dir().join("up").exists();
        assert!(out == expected || !is_up && expected.starts_with(&*out), "{out}");
        let job = status(&mut client, "1").await.unwrap();
        assert_eq!(job.status(), JobStatus::Failure);
        assert!(job.message.starts_with("job exceeded its maximum run time"), "{}", job.message);

        // Another server, because with a short `--stale-after` the status above could already be gone.
        let forgotten = [&options[..], &["--max-runtime", "200ms", "--stale-after", "1s"]].concat();
        let server = ServerFixture::with(&forgotten, &[]);
        let mut client = server.gitlab();
        client.run(server.script("1", "sleep 1000")).await.unwrap();
        while status(&mut client, "1").await.is_ok() {
            tokio::time::sleep(POLL).await;
        }
    });
}

#[test]
fn number_of_jobs_is_limited() {
    block_on(async {
        let server = ServerFixture::with(&["--max-jobs", "2"], &[]);
        let mut client = server.gitlab();
        client.run(server.script("1", "true")).await.unwrap();
        client.run(server.script("2", "true")).await.unwrap();
        let error = client.run(server.script("3", "true")).await.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        client.run(server.script("1", "true")).await.unwrap();
        close(&mut client, "1").await;
        client.run(server.script("3", "true")).await.unwrap();
    });
}

#[test]
fn log_is_limited_and_reports_its_truncation() {
    block_on(async {
        let server = ServerFixture::with(&["--max-log", "64K"], &[]);
        let mut client = server.gitlab();
        client
            .run(server.script("1", "head -c 1000000 /dev/zero | tr '\\0' '\\n'; echo end"))
            .await
            .unwrap();
        let log = log(&mut client, "1", 0).await.unwrap();
        assert!(log.len() < 70_000, "{}", log.len());
        let tail = String::from_utf8_lossy(&log[log.len() - 200..]).into_owned();
        assert!(tail.contains("log truncated"), "{tail}");
        assert_eq!(status(&mut client, "1").await.unwrap().status(), JobStatus::Success);
    });
}

#[test]
fn client_can_wait_for_a_silent_job() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        client.run(server.script("1", "while [ ! -e gate ]; do sleep 0.02; done")).await.unwrap();
        // Beyond the current end of the log: nothing is sent, and the stream stays open.
        let follow = tokio::spawn({
            let mut client = client.clone();
            async move { log(&mut client, "1", 1_000_000).await.unwrap() }
        });
        // Other requests are answered meanwhile.
        status(&mut client, "1").await.unwrap();
        assert!(!follow.is_finished());
        std::fs::write(server.work_dir().join("gate"), "").unwrap();
        assert_eq!(follow.await.unwrap(), b"");
    });
}
