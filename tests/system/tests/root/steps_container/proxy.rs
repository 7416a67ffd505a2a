//! The proxy in a container, executed by the runtime.

use std::fmt::Write as _;
use std::future::Future;

use oci_hooks_testsupport::program::DEADLINE;
use oci_hooks_testsupport::runtime::TestRuntime;
use step_runner::client::StepClient;
use step_runner::log::LogDemux;
use step_runner::wire::proto::RunRequest;
use step_runner::wire::proto::step_result::Status;

use crate::steps_container::setup::ServerContainer;

/// Exceeds all buffers between server and client.
const BLOCK_BYTES: usize = 8 << 20;

#[test]
fn job_in_a_container_is_followed_despite_killed_proxies() {
    let mut block = String::new();
    for line in 0_u32.. {
        writeln!(block, "line {line} of what must come whole").unwrap();
        if block.len() >= BLOCK_BYTES {
            break;
        }
    }
    for runtime in TestRuntime::ALL {
        let container = ServerContainer::start(runtime, block.as_bytes());
        block_on(async {
            let client = container.client();
            let mut log = Vec::new();
            let mut kill_at = [1, BLOCK_BYTES / 2, BLOCK_BYTES].into_iter().peekable();
            let request = request("whole", "cat /block; exit 7");
            let follow = |bytes: &[u8]| {
                log.extend_from_slice(bytes);
                if kill_at.next_if(|&at| log.len() >= at).is_some() {
                    assert_eq!(container.kill_proxies(), 1, "{runtime}");
                }
            };
            let outcome = client.execute(request, follow).await.unwrap();
            assert_eq!((outcome.status, outcome.exit_code), (Status::Failure, 7), "{runtime}");
            assert_eq!(kill_at.next(), None);
            let came = strip_stamps(&log);
            assert!(came == format!("Running step name=a\n{block}"), "{runtime}: {}", came.len());
            // The job was closed.
            assert!(client.status("whole").await.is_err());
        });
        container.remove();
    }
}

#[test]
fn job_in_a_container_is_started_followed_again_and_closed() {
    for runtime in TestRuntime::ALL {
        let container = ServerContainer::start(runtime, b"");
        block_on(async {
            let client = container.client();
            let script = "echo begun; mkfifo /tmp/go; cat /tmp/go; echo done";
            client.run(request("job", script)).await.unwrap();
            client.run(request("job", script)).await.unwrap();
            let mut log = client.follow_log("job", 0);
            let mut begin = Vec::new();
            while !strip_stamps(&begin).contains("begun") {
                begin.extend(log.next().await.unwrap().expect("it runs"));
            }
            assert_eq!(status(&client).await, Status::Running, "{runtime}");
            // A server forgets a disconnected client, but not the job.
            assert_eq!(container.kill_proxies(), 1, "{runtime}");
            let other = container.client();
            other.run(request("other", "echo go > /tmp/go")).await.unwrap();
            while let Some(bytes) = log.next().await.unwrap() {
                begin.extend(bytes);
            }
            assert_eq!(strip_stamps(&begin), "Running step name=a\nbegun\ngo\ndone\n", "{runtime}");
            assert_eq!(status(&other).await, Status::Success, "{runtime}");
            let mut again = Vec::new();
            let mut log = other.follow_log("job", 0);
            while let Some(bytes) = log.next().await.unwrap() {
                again.extend(bytes);
            }
            assert_eq!(again, begin, "{runtime}");
            // This job runs until stopped.
            other.run(request("endless", "sleep 1000")).await.unwrap();
            for id in ["endless", "job", "other", "none"] {
                other.close(id).await.unwrap();
            }
            assert_eq!(other.status("").await.unwrap(), [], "{runtime}");
        });
        container.remove();
    }
}

fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async { tokio::time::timeout(DEADLINE, test).await });
    result.expect("the test takes too long");
}

fn request(id: &str, script: &str) -> RunRequest {
    RunRequest {
        id: id.to_owned(),
        work_dir: "/tmp".to_owned(),
        steps: format!("{{}}\n---\nrun: [{{name: a, script: {script:?}}}]\n"),
        ..RunRequest::default()
    }
}

async fn status(client: &StepClient) -> Status {
    client.status("job").await.unwrap()[0].status()
}

fn strip_stamps(log: &[u8]) -> String {
    let mut text = Vec::new();
    let mut demux = LogDemux::default();
    demux.write(log, |_, bytes| text.extend_from_slice(bytes));
    demux.finish(|_, bytes| text.extend_from_slice(bytes));
    String::from_utf8(text).unwrap()
}
