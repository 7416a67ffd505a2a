//! The service `oci_hooks.steps.v1.StepRunner`, after GitLab's design document "Runner Integration for CI
//! Steps", which GitLab's step-runner does not implement.

use tonic::{Code, Request, Response, Status};

use super::super::jobs::{JobRegistry, VariableMode};
use super::super::wire::document::{self, step_runner_server::StepRunner};
use super::super::wire::proto;
use super::gitlab::{close, code, follow_logs, run, status};
use super::stream::{MessageStream, unfold};

/// The gRPC service of GitLab's design document, for the jobs of a [`JobRegistry`].
#[derive(Clone)]
pub struct DesignDocumentService {
    pub jobs: JobRegistry,
}

#[tonic::async_trait]
impl StepRunner for DesignDocumentService {
    async fn run(
        &self,
        request: Request<proto::RunRequest>,
    ) -> Result<Response<proto::RunResponse>, Status> {
        run(&self.jobs, request.into_inner(), VariableMode::Environment, code).await
    }

    type FollowStepsStream = MessageStream<document::FollowStepsResponse>;

    async fn follow_steps(
        &self,
        request: Request<document::FollowStepsRequest>,
    ) -> Result<Response<Self::FollowStepsStream>, Status> {
        let document::FollowStepsRequest { id, offset } = request.into_inner();
        let Ok(offset) = usize::try_from(offset) else {
            return Err(Status::out_of_range(format!("offset {offset} is negative")));
        };
        let steps = self.jobs.follow_steps(&id, offset);
        let steps = steps.map_err(|error| Status::not_found(error.to_string()))?;
        let responses = unfold(steps, |mut steps| async move {
            let result = steps.next().await.map_err(|error| {
                Status::internal(format!("cannot read the results of steps: {error}"))
            });
            let response = |result| document::FollowStepsResponse { result: Some(result) };
            result.map(|result| result.map(|result| (response(result), steps)))
        });
        Ok(Response::new(responses))
    }

    type FollowLogsStream = MessageStream<proto::FollowLogsResponse>;

    async fn follow_logs(
        &self,
        request: Request<proto::FollowLogsRequest>,
    ) -> Result<Response<Self::FollowLogsStream>, Status> {
        follow_logs(&self.jobs, &request.into_inner(), Code::NotFound, Code::OutOfRange)
    }

    async fn finish(
        &self,
        request: Request<document::FinishRequest>,
    ) -> Result<Response<document::FinishResponse>, Status> {
        close(&self.jobs, request.into_inner().id).await?;
        Ok(Response::new(document::FinishResponse {}))
    }

    async fn status(
        &self,
        request: Request<document::StatusRequest>,
    ) -> Result<Response<document::StatusResponse>, Status> {
        let jobs = status(&self.jobs, &request.into_inner().id, Code::NotFound)?;
        let jobs = jobs.into_iter().map(|job| document::Status {
            finished: job.is_finished(),
            id: job.id,
            exit_code: job.exit_code,
            start_time: job.start.map(Into::into),
            end_time: job.end.map(Into::into),
        });
        Ok(Response::new(document::StatusResponse { jobs: jobs.collect() }))
    }
}
