//! Results of steps while a job runs.

use step_runner::wire::document::{FollowStepsRequest, step_runner_client};
use step_runner::wire::proto::StepResult;
use step_runner::wire::proto::step_result::Status;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use crate::service::setup::{ServerFixture, block_on};

async fn follow(
    client: &mut step_runner_client::StepRunnerClient<Channel>,
    offset: i32,
) -> Streaming<step_runner::wire::document::FollowStepsResponse> {
    let request = FollowStepsRequest { id: "1".to_owned(), offset };
    client.follow_steps(request).await.unwrap().into_inner()
}

pub(crate) async fn rest(
    mut stream: Streaming<step_runner::wire::document::FollowStepsResponse>,
) -> Vec<StepResult> {
    let mut all = Vec::new();
    while let Some(answer) = stream.message().await.unwrap() {
        all.push(answer.result.unwrap());
    }
    all
}

fn name(result: &StepResult) -> &str {
    &result.step.as_ref().unwrap().name
}

#[test]
fn results_arrive_as_steps_end_and_the_jobs_comes_last() {
    block_on(async {
        let server = ServerFixture::start();
        let inner = server.work_dir().join("o/step.yml");
        std::fs::create_dir(inner.parent().unwrap()).unwrap();
        std::fs::write(&inner, "spec:\n---\nrun: [{name: inner, script: 'true'}]\n").unwrap();
        let run = "
  - {name: outer, step: ./o}
  - {name: waits, script: 'while [ ! -e gate ]; do sleep 0.02; done; exit 3'}
  - {name: never, script: 'true'}
";
        let mut client = server.document();
        client.run(server.request("1", run)).await.unwrap();
        let mut stream = follow(&mut client, 0).await;
        // These two results arrive while the job still runs.
        for expected in ["inner", "outer"] {
            let result = stream.message().await.unwrap().unwrap().result.unwrap();
            assert_eq!((name(&result), result.status()), (expected, Status::Success));
        }
        std::fs::write(server.work_dir().join("gate"), "").unwrap();
        let last = rest(stream).await;
        let [waits, root] = &last[..] else { panic!("{last:#?}") };
        assert_eq!((name(waits), waits.status()), ("waits", Status::Failure));
        assert_eq!(waits.exec_result.as_ref().unwrap().exit_code, 3);
        assert_eq!((name(root), root.status()), ("", Status::Failure));
        assert_eq!(root.sub_step_results.len(), 2);

        // Streams can be opened repeatedly and at any offset.
        let all = rest(follow(&mut client, 0).await).await;
        assert_eq!(all.iter().map(name).collect::<Vec<_>>(), ["inner", "outer", "waits", ""]);
        for skip in 0..=5 {
            let some = rest(follow(&mut client, i32::try_from(skip).unwrap()).await).await;
            assert_eq!(some, all[skip.min(4)..]);
        }
    });
}

#[test]
fn missing_job_has_no_results() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.document();
        let request = FollowStepsRequest { id: "1".to_owned(), offset: 0 };
        let error = client.follow_steps(request).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::NotFound, "no job with id \"1\""));
    });
}
