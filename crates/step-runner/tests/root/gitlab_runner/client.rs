//! gitlab-runner's calls of the server, in its order: Run, FollowLogs, Status, Close.

use std::future::Future;

use oci_hooks_testsupport::program::DEADLINE;
use step_runner::client::StepClient;
use step_runner::log::LogDemux;
use step_runner::wire::proto::step_result::Status;
use step_runner::wire::proto::{Job, RunRequest, Variable};

/// Project directory in build containers.
pub(crate) const PROJECT: &str = "/builds/group/project";

pub(crate) fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async { tokio::time::timeout(DEADLINE, test).await });
    result.expect("the test takes too long");
}

/// Returns a request as gitlab-runner creates it.
pub(crate) fn request(id: &str, run: &str) -> RunRequest {
    let variable = Variable {
        key: "CI_PROJECT_NAME".to_owned(),
        value: "project".to_owned(),
        ..Variable::default()
    };
    RunRequest {
        id: id.to_owned(),
        work_dir: PROJECT.to_owned(),
        job: Some(Job {
            build_dir: PROJECT.to_owned(),
            variables: vec![variable],
            ..Job::default()
        }),
        steps: format!("{{}}\n---\n{run}"),
        ..RunRequest::default()
    }
}

/// Returns a request to run a script.
pub(crate) fn script(id: &str, script: &str) -> RunRequest {
    let script = serde_json::to_string(script).unwrap();
    request(id, &format!("run:\n  - name: a\n    script: {script}\n"))
}

/// Runs a job to its end, and returns its status, exit code and log.
pub(crate) async fn run(client: &StepClient, request: RunRequest) -> (Status, i32, String) {
    let mut log = Vec::new();
    let outcome = client.execute(request, |bytes| log.extend_from_slice(bytes)).await.unwrap();
    (outcome.status, outcome.exit_code, text(&log))
}

/// Returns a log without timestamps and stream markers.
pub(crate) fn text(log: &[u8]) -> String {
    let mut text = Vec::new();
    let mut demux = LogDemux::default();
    demux.write(log, |_, bytes| text.extend_from_slice(bytes));
    demux.finish(|_, bytes| text.extend_from_slice(bytes));
    String::from_utf8(text).unwrap()
}
