//! GitLab's own service: `proto.StepRunner`.

use std::time::SystemTime;

use tokio::task::JoinError;
use tonic::{Code, Request, Response, Status};

use super::super::jobs::{Jobs, RunError, Snapshot, Variables, either};
use super::super::wire::proto;
use super::super::wire::proto::step_runner_server::StepRunner;
use super::stream::{PANICKED, Responses, unfold};

/// The gRPC service, with its jobs.
#[derive(Clone, Debug)]
pub struct GitLab {
    pub jobs: Jobs,
    pub variables: Variables,
}

#[tonic::async_trait]
impl StepRunner for GitLab {
    async fn run(
        &self,
        request: Request<proto::RunRequest>,
    ) -> Result<Response<proto::RunResponse>, Status> {
        let code = |error: &RunError| match error {
            // Errors that GitLab's step-runner does not have.
            RunError::Id
            | RunError::ShuttingDown
            | RunError::TooManyJobs(_)
            | RunError::LogFormat(_)
            | RunError::Variable(_) => code(error),
            _ => Code::Unknown,
        };
        run(&self.jobs, request.into_inner(), self.variables, code).await
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
        close(&self.jobs, request.into_inner().id).await?;
        Ok(Response::new(proto::CloseResponse {}))
    }

    async fn cancel(
        &self,
        request: Request<proto::CancelRequest>,
    ) -> Result<Response<proto::CancelResponse>, Status> {
        cancel(&self.jobs, request.into_inner().id).await
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

/// Starts a job, even if the client disconnects meanwhile. `code` tells the codes of errors.
pub async fn run(
    jobs: &Jobs,
    request: proto::RunRequest,
    variables: Variables,
    code: impl Fn(&RunError) -> Code,
) -> Result<Response<proto::RunResponse>, Status> {
    let starting = {
        let jobs = jobs.clone();
        tokio::task::spawn_blocking(move || jobs.run(request, variables))
    };
    // It hangs where a mount does not answer.
    let mut started = None;
    either(async { started = Some(starting.await) }, jobs.stopped()).await;
    let started = started.unwrap_or(Ok(Err(RunError::ShuttingDown)));
    match started.map_err(|error| lost(&error))? {
        Ok(()) => Ok(Response::new(proto::RunResponse {})),
        Err(error) => Err(Status::new(code(&error), error.to_string())),
    }
}

/// Returns the gRPC code of an error.
pub fn code(error: &RunError) -> Code {
    match error {
        RunError::Id
        | RunError::Steps { .. }
        | RunError::Variable(_)
        | RunError::LogLevel(_)
        | RunError::LogFormat(_)
        | RunError::Check(_) => Code::InvalidArgument,
        RunError::ShuttingDown => Code::Unavailable,
        RunError::TooManyJobs(_) | RunError::Start(_) => Code::ResourceExhausted,
        RunError::WorkDir { .. } => Code::FailedPrecondition,
        RunError::Files(_) | RunError::Log(_) => Code::Internal,
    }
}

/// Streams the log of a job.
pub fn follow_logs(
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
pub async fn close(jobs: &Jobs, id: String) -> Result<(), Status> {
    let jobs = jobs.clone();
    match tokio::spawn(async move { jobs.close(&id).await }).await {
        Err(error) if error.is_panic() => Err(lost(&error)),
        // It fails otherwise only when the server shuts down, which does the same.
        _ => Ok(()),
    }
}

/// Stops a job, without waiting for its end.
///
/// An unknown job is an error, unlike for [`close`]: the client only warns of it, and a success would say
/// that something is being stopped.
async fn cancel(jobs: &Jobs, id: String) -> Result<Response<proto::CancelResponse>, Status> {
    if id.is_empty() {
        let text = "which job is to be cancelled? expected one text that is not empty";
        return Err(Status::invalid_argument(text));
    }
    let cancelling = {
        let jobs = jobs.clone();
        tokio::task::spawn_blocking(move || jobs.cancel(&id))
    };
    // It hangs where the start of the job does.
    let mut cancelled = None;
    either(async { cancelled = Some(cancelling.await) }, jobs.stopped()).await;
    match cancelled.transpose().map_err(|error| lost(&error))? {
        None | Some(Ok(())) => Ok(Response::new(proto::CancelResponse {})),
        Some(Err(error)) => Err(Status::unknown(error.to_string())),
    }
}

/// Returns the status for a task that did not end: it panicked, or the server is shutting down.
fn lost(error: &JoinError) -> Status {
    match error.is_panic() {
        // What it said is on standard error.
        true => Status::internal(PANICKED),
        false => Status::unavailable(RunError::ShuttingDown.to_string()),
    }
}

/// Returns the status of a job, or of all jobs if the id is empty.
pub fn status(jobs: &Jobs, id: &str, unknown_job: Code) -> Result<Vec<Snapshot>, Status> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_from_the_end_of_the_server() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let panicked = tokio::spawn(async { panic!("for this test") }).await.unwrap_err();
            assert_eq!(lost(&panicked).code(), Code::Internal);
            let task = tokio::spawn(std::future::pending::<()>());
            task.abort();
            assert_eq!(lost(&task.await.unwrap_err()).code(), Code::Unavailable);
        });
    }
}
