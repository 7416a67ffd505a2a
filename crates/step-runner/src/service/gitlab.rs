//! GitLab's own service: `proto.StepRunner`.

use tokio::task::JoinError;
use tonic::{Code, Request, Response, Status};

use super::super::jobs::{JobRegistry, JobSnapshot, RunError, VariableMode, wait_for_either};
use super::super::wire::proto;
use super::super::wire::proto::step_runner_server::StepRunner;
use super::stream::{MessageStream, PANICKED, unfold};

/// The gRPC service of GitLab's step-runner, for the jobs of a [`JobRegistry`].
#[derive(Clone)]
pub struct GitLabService {
    pub jobs: JobRegistry,
    pub variables: VariableMode,
}

#[tonic::async_trait]
impl StepRunner for GitLabService {
    async fn run(
        &self,
        request: Request<proto::RunRequest>,
    ) -> Result<Response<proto::RunResponse>, Status> {
        let code = |error: &RunError| match error {
            // Errors that GitLab's step-runner does not have.
            RunError::Id
            | RunError::ShuttingDown
            | RunError::TooManyJobs(_)
            | RunError::Descriptors { .. }
            | RunError::LogFormat(_)
            | RunError::Variable(_) => code(error),
            _ => Code::Unknown,
        };
        run(&self.jobs, request.into_inner(), self.variables, code).await
    }

    type FollowLogsStream = MessageStream<proto::FollowLogsResponse>;

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
            start_time: job.start.map(Into::into),
            end_time: job.end.map(Into::into),
        });
        Ok(Response::new(proto::StatusResponse { jobs: jobs.collect() }))
    }
}

/// Starts a job, even if the client disconnects meanwhile. `code` maps errors to gRPC codes.
pub async fn run(
    jobs: &JobRegistry,
    request: proto::RunRequest,
    variables: VariableMode,
    code: impl Fn(&RunError) -> Code,
) -> Result<Response<proto::RunResponse>, Status> {
    let starting = {
        let jobs = jobs.clone();
        tokio::task::spawn_blocking(move || jobs.run(request, variables))
    };
    // The start may block on a mount that does not respond.
    let mut started = None;
    wait_for_either(async { started = Some(starting.await) }, jobs.wait_until_stopped()).await;
    let started = started.unwrap_or(Ok(Err(RunError::ShuttingDown)));
    match started.map_err(|error| join_error_status(&error))? {
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
        RunError::TooManyJobs(_) | RunError::Descriptors { .. } | RunError::Start(_) => {
            Code::ResourceExhausted
        }
        RunError::WorkDir { .. } => Code::FailedPrecondition,
        RunError::Files(_) | RunError::Log(_) => Code::Internal,
    }
}

/// Streams the log of a job. `unknown_job` is the gRPC code of the error if no job has the id.
pub fn follow_logs(
    jobs: &JobRegistry,
    request: &proto::FollowLogsRequest,
    unknown_job: Code,
    bad_offset: Code,
) -> Result<Response<MessageStream<proto::FollowLogsResponse>>, Status> {
    let proto::FollowLogsRequest { id, offset } = request;
    // Checked first: an unknown job takes precedence over a bad offset.
    jobs.status(id).map_err(|error| Status::new(unknown_job, error.to_string()))?;
    let Ok(offset) = u64::try_from(*offset) else {
        let text = format!("following logs for job {id:?}: offset {offset} is negative");
        return Err(Status::new(bad_offset, text));
    };
    let follower = jobs.follow_log(id, offset);
    let follower = follower.map_err(|error| Status::new(unknown_job, error.to_string()))?;
    let responses = unfold(follower, |mut follower| async move {
        let data = follower.next().await;
        let data = data.map_err(|error| Status::internal(oci_hooks_files::error::chain(&error)));
        data.map(|data| data.map(|data| (proto::FollowLogsResponse { data }, follower)))
    });
    Ok(Response::new(responses))
}

/// Stops and removes a job, even if the client disconnects meanwhile.
pub async fn close(jobs: &JobRegistry, id: String) -> Result<(), Status> {
    let jobs = jobs.clone();
    match tokio::spawn(async move { jobs.close(&id).await }).await {
        Err(error) if error.is_panic() => Err(join_error_status(&error)),
        // Other errors occur only during shutdown of the server, which stops all jobs.
        _ => Ok(()),
    }
}

/// Stops a job, without waiting for its end.
///
/// Unlike for [`close`], an unknown job is an error: the client only warns of it, and success would imply
/// that a job is being stopped.
async fn cancel(jobs: &JobRegistry, id: String) -> Result<Response<proto::CancelResponse>, Status> {
    if id.is_empty() {
        let text = "missing job id: expected exactly one non-empty string field";
        return Err(Status::invalid_argument(text));
    }
    let cancelling = {
        let jobs = jobs.clone();
        tokio::task::spawn_blocking(move || jobs.cancel(&id))
    };
    // Cancelling blocks while the start of the job does.
    let mut cancelled = None;
    wait_for_either(async { cancelled = Some(cancelling.await) }, jobs.wait_until_stopped()).await;
    match cancelled.transpose().map_err(|error| join_error_status(&error))? {
        None | Some(Ok(())) => Ok(Response::new(proto::CancelResponse {})),
        Some(Err(error)) => Err(Status::unknown(error.to_string())),
    }
}

/// Returns the status for a task that did not complete: it panicked, or the server is shutting down.
fn join_error_status(error: &JoinError) -> Status {
    match error.is_panic() {
        // The panic message is on standard error.
        true => Status::internal(PANICKED),
        false => Status::unavailable(RunError::ShuttingDown.to_string()),
    }
}

/// Returns the status of a job, or of all jobs if the id is empty. `unknown_job` is the gRPC code
/// of the error if no job has the id.
pub fn status(jobs: &JobRegistry, id: &str, unknown_job: Code) -> Result<Vec<JobSnapshot>, Status> {
    if id.is_empty() {
        return Ok(jobs.list_jobs());
    }
    match jobs.status(id) {
        Ok(job) => Ok(vec![job]),
        Err(error) => Err(Status::new(unknown_job, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_is_distinguished_from_a_server_shutdown() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let panicked = tokio::spawn(async { panic!("for this test") }).await.unwrap_err();
            assert_eq!(join_error_status(&panicked).code(), Code::Internal);
            let task = tokio::spawn(std::future::pending::<()>());
            task.abort();
            assert_eq!(join_error_status(&task.await.unwrap_err()).code(), Code::Unavailable);
        });
    }
}
