//! GitLab's own service: `proto.StepRunner`.

use std::time::SystemTime;

use tonic::{Code, Request, Response, Status};

use super::super::jobs::{Jobs, RunError, Snapshot, Variables, either};
use super::super::wire::proto::{self, step_runner_server::StepRunner};
use super::stream::{Responses, unfold};

/// The gRPC service, with its jobs.
#[derive(Clone, Debug)]
pub(super) struct GitLab {
    pub(super) jobs: Jobs,
    pub(super) variables: Variables,
}

#[tonic::async_trait]
impl StepRunner for GitLab {
    async fn run(
        &self,
        request: Request<proto::RunRequest>,
    ) -> Result<Response<proto::RunResponse>, Status> {
        run(&self.jobs, request.into_inner(), self.variables).await.map_err(|error| {
            let code = match error {
                // Errors that GitLab's step-runner does not have.
                RunError::Id
                | RunError::ShuttingDown
                | RunError::TooManyJobs(_)
                | RunError::Variable(_) => code(&error),
                _ => Code::Unknown,
            };
            Status::new(code, error.to_string())
        })
    }

    type FollowLogsStream = Responses<proto::FollowLogsResponse>;

    async fn follow_logs(
        &self,
        request: Request<proto::FollowLogsRequest>,
    ) -> Result<Response<Self::FollowLogsStream>, Status> {
        follow_logs(&self.jobs, &request.into_inner(), Code::Unknown, Code::Unknown)
    }

    async fn close(
        &self,
        request: Request<proto::CloseRequest>,
    ) -> Result<Response<proto::CloseResponse>, Status> {
        close(&self.jobs, request.into_inner().id).await;
        Ok(Response::new(proto::CloseResponse {}))
    }

    async fn status(
        &self,
        request: Request<proto::StatusRequest>,
    ) -> Result<Response<proto::StatusResponse>, Status> {
        let jobs = status(&self.jobs, &request.into_inner().id, Code::Unknown)?;
        let jobs = jobs.into_iter().map(|job| proto::Status {
            id: job.id,
            message: job.message,
            status: job.status.into(),
            start_time: job.start.map(timestamp),
            end_time: job.end.map(timestamp),
        });
        Ok(Response::new(proto::StatusResponse { jobs: jobs.collect() }))
    }
}

/// Starts a job, even if the client disconnects meanwhile.
pub(super) async fn run(
    jobs: &Jobs,
    request: proto::RunRequest,
    variables: Variables,
) -> Result<Response<proto::RunResponse>, RunError> {
    let starting = {
        let jobs = jobs.clone();
        tokio::task::spawn_blocking(move || jobs.run(request, variables))
    };
    // Apart from a panic, it fails only when the server shuts down, and hangs where a mount does not answer.
    let mut started = None;
    either(async { started = starting.await.ok() }, jobs.stopped()).await;
    started.unwrap_or(Err(RunError::ShuttingDown))?;
    Ok(Response::new(proto::RunResponse {}))
}

/// Returns the gRPC code of an error.
pub(super) fn code(error: &RunError) -> Code {
    match error {
        RunError::Id
        | RunError::Steps { .. }
        | RunError::Variable(_)
        | RunError::LogLevel(_)
        | RunError::Check(_) => Code::InvalidArgument,
        RunError::ShuttingDown => Code::Unavailable,
        RunError::TooManyJobs(_) | RunError::Start(_) => Code::ResourceExhausted,
        RunError::WorkDir { .. } => Code::FailedPrecondition,
        RunError::Files(_) | RunError::Log(_) => Code::Internal,
    }
}

/// Streams the log of a job.
pub(super) fn follow_logs(
    jobs: &Jobs,
    request: &proto::FollowLogsRequest,
    unknown_job: Code,
    bad_offset: Code,
) -> Result<Response<Responses<proto::FollowLogsResponse>>, Status> {
    let proto::FollowLogsRequest { id, offset } = request;
    // Checked first: an unknown job takes precedence over a bad offset.
    jobs.status(id).map_err(|error| Status::new(unknown_job, error.to_string()))?;
    let Ok(offset) = u64::try_from(*offset) else {
        let text = format!("following logs for job {id:?}: offset {offset} is negative");
        return Err(Status::new(bad_offset, text));
    };
    let follower = jobs.follow_log(id, offset);
    let follower = follower.map_err(|error| Status::new(unknown_job, error.to_string()))?;
    let responses = unfold(follower, |mut follower| async {
        let data = follower.next().await;
        let response = data
            .map(|data| data.map(|data| proto::FollowLogsResponse { data }))
            .map_err(|error| Status::internal(crate::sys::error::chain(&error)));
        (follower, response)
    });
    Ok(Response::new(responses))
}

/// Stops and removes a job, even if the client disconnects meanwhile.
pub(super) async fn close(jobs: &Jobs, id: String) {
    let jobs = jobs.clone();
    // It fails only when the server shuts down, which does the same.
    let _ = tokio::spawn(async move { jobs.close(&id).await }).await;
}

/// Returns the status of a job, or of all jobs if the id is empty.
pub(super) fn status(jobs: &Jobs, id: &str, unknown_job: Code) -> Result<Vec<Snapshot>, Status> {
    if id.is_empty() {
        return Ok(jobs.all());
    }
    match jobs.status(id) {
        Ok(job) => Ok(vec![job]),
        Err(error) => Err(Status::new(unknown_job, error.to_string())),
    }
}

pub(super) fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    time.into()
}
