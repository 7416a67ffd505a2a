//! The client: calls of the gRPC services, logs and results that resume after lost connections, and
//! execution of whole jobs.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::codec::Streaming;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use tower::service_fn;

use super::super::wire::document::step_runner_client::StepRunnerClient as DocumentClient;
use super::super::wire::document::{self, FollowStepsRequest, FollowStepsResponse};
use super::super::wire::proto::step_runner_client::StepRunnerClient as GitLabClient;
use super::super::wire::proto::{
    self, FollowLogsRequest, FollowLogsResponse, RunRequest, StepResult, step_result,
};
use super::address::{ServerAddress, StderrTail};
use super::error::{ClientError, RetryAttempts, retry};

/// Size limit of a response: the result of a job contains those of all its steps.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// HTTP/2 window of a stream: the maximum of log bytes in flight.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Default time without a response from the server after which calls are no longer retried.
const GIVE_UP: Duration = Duration::from_secs(120);

/// A gRPC client. Clones share one connection, which is opened on first use and reopened after a loss.
#[derive(Clone, Debug)]
pub struct StepClient {
    channel: Channel,
    give_up: Duration,
    stderr: StderrTail,
}

impl StepClient {
    /// Returns a client of the server at an address. Must be called within a Tokio runtime.
    pub fn new(address: ServerAddress) -> Self {
        let stderr = StderrTail::default();
        let shared = stderr.clone();
        let connect = service_fn(move |_: Uri| {
            let (address, stderr) = (address.clone(), shared.clone());
            async move { address.connect(stderr).await.map(TokioIo::new) }
        });
        // The name is never resolved: the connector has the address.
        let channel = Endpoint::from_static("http://step-runner")
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(4 * STREAM_WINDOW_BYTES)
            .connect_with_connector_lazy(connect);
        StepClient { channel, give_up: GIVE_UP, stderr }
    }

    /// Sets the time for which calls are retried while the server is unreachable, by default two minutes.
    #[must_use]
    pub fn with_give_up(self, give_up: Duration) -> Self {
        StepClient { give_up, ..self }
    }

    /// Starts a job, unless a job with this id exists.
    pub async fn run(&self, request: RunRequest) -> Result<(), ClientError> {
        // Retrying is safe: the id makes the call idempotent.
        retry(self.give_up, || async { self.response(self.gitlab().run(request.clone()).await) })
            .await?;
        Ok(())
    }

    /// Follows the log of a job from an offset in bytes, and resumes after lost connections.
    pub fn follow_log(&self, id: &str, offset: u64) -> ClientLog {
        ClientLog { client: self.clone(), id: id.to_owned(), offset, stream: None }
    }

    /// Follows the results of a job's steps, without the first `skip`, and resumes after lost
    /// connections. GitLab's step-runner does not implement it.
    pub fn follow_steps(&self, id: &str, skip: u32) -> ClientSteps {
        ClientSteps { client: self.clone(), id: id.to_owned(), next: skip, stream: None }
    }

    /// Returns the status of a job, or of all jobs if the id is empty.
    pub async fn status(&self, id: &str) -> Result<Vec<proto::Status>, ClientError> {
        let request = || proto::StatusRequest { id: id.to_owned() };
        let ask = || async { self.response(self.gitlab().status(request()).await) };
        Ok(retry(self.give_up, ask).await?.jobs)
    }

    /// Returns the status of a job, or of all jobs if the id is empty, in the form of the design
    /// document. GitLab's step-runner does not implement it.
    pub async fn document_status(&self, id: &str) -> Result<Vec<document::Status>, ClientError> {
        let request = || document::StatusRequest { id: id.to_owned() };
        let ask = || async { self.response(self.document().status(request()).await) };
        Ok(retry(self.give_up, ask).await?.jobs)
    }

    /// Stops a job if it runs, without waiting for its end: steps with `always()` or `cancelled()` in their
    /// condition still run, and the job stays on the server until it is closed. GitLab's step-runner before
    /// 0.35 does not implement it.
    pub async fn cancel(&self, id: &str) -> Result<(), ClientError> {
        let request = || proto::CancelRequest { id: id.to_owned() };
        let ask = || async { self.response(self.gitlab().cancel(request()).await) };
        retry(self.give_up, ask).await?;
        Ok(())
    }

    /// Stops a job if it runs, and removes it from the server. An unknown job is not an error.
    pub async fn close(&self, id: &str) -> Result<(), ClientError> {
        let request = || proto::CloseRequest { id: id.to_owned() };
        let ask = || async { self.response(self.gitlab().close(request()).await) };
        retry(self.give_up, ask).await?;
        Ok(())
    }

    fn gitlab(&self) -> GitLabClient<Channel> {
        GitLabClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    fn document(&self) -> DocumentClient<Channel> {
        DocumentClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    fn response<T>(&self, result: Result<Response<T>, Status>) -> Result<T, ClientError> {
        result.map(Response::into_inner).map_err(|status| self.error(status))
    }

    fn error(&self, status: Status) -> ClientError {
        ClientError::new(status, self.stderr.text())
    }
}

/// Result of [`StepClient::execute`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecuteOutcome {
    pub status: step_result::Status,
    pub message: String,
    /// Exit code of the command that failed; 1 if the job failed otherwise, 0 on success.
    pub exit_code: i32,
}

impl StepClient {
    /// Runs a job, passes its log to `take` as it arrives, and closes the job.
    ///
    /// Resumes after a lost connection. If the future is dropped or fails, the job continues: sending the
    /// same request again follows it, with the log from the beginning.
    pub async fn execute(
        &self,
        request: RunRequest,
        mut take: impl FnMut(&[u8]),
    ) -> Result<ExecuteOutcome, ClientError> {
        let id = request.id.clone();
        self.run(request).await?;
        let lost = |error: ClientError| {
            if error.is_no_such_job() { ClientError::Lost { id: id.clone() } } else { error }
        };
        let mut log = self.follow_log(&id, 0);
        while let Some(bytes) = log.next().await.map_err(lost)? {
            take(&bytes);
        }
        let job = self.status(&id).await.map_err(lost)?.pop();
        let job = job.ok_or_else(|| ClientError::Lost { id: id.clone() })?;
        self.close(&id).await?;
        let status = job.status();
        let exit_code = match status {
            step_result::Status::Success => 0,
            _ => exit_code(&job.message).unwrap_or(1),
        };
        Ok(ExecuteOutcome { status, message: job.message, exit_code })
    }
}

/// Finds the exit code at the end of a message, where GitLab's runner looks for it.
fn exit_code(message: &str) -> Option<i32> {
    let (_, code) = message.rsplit_once("exit status ")?;
    match code.strip_prefix("0x") {
        Some(code) => i32::from_str_radix(code, 16).ok(),
        None => code.parse().ok(),
    }
}

/// A reader that follows the log of a job; see [`StepClient::follow_log`].
#[derive(Debug)]
pub struct ClientLog {
    client: StepClient,
    id: String,
    offset: u64,
    stream: Option<Streaming<FollowLogsResponse>>,
}

impl ClientLog {
    /// Waits for the next bytes; `None` when the job has ended.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let mut attempts = RetryAttempts::new(self.client.give_up);
        loop {
            match self.try_next().await {
                Ok(Some(response)) => {
                    self.offset += response.data.len() as u64;
                    return Ok(Some(response.data));
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.stream = None;
                    attempts.wait(error).await?;
                }
            }
        }
    }

    /// Returns the offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    async fn try_next(&mut self) -> Result<Option<FollowLogsResponse>, ClientError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                // No log reaches this length.
                let offset = i64::try_from(self.offset).unwrap_or(i64::MAX);
                let request = FollowLogsRequest { id: self.id.clone(), offset };
                let stream = self.client.gitlab().follow_logs(request).await;
                self.stream.insert(self.client.response(stream)?)
            }
        };
        stream.message().await.map_err(|status| self.client.error(status))
    }
}

/// A reader that follows the results of a job's steps; see [`StepClient::follow_steps`].
#[derive(Debug)]
pub struct ClientSteps {
    client: StepClient,
    id: String,
    next: u32,
    stream: Option<Streaming<FollowStepsResponse>>,
}

impl ClientSteps {
    /// Waits for the result of the next step to end. The result of the job comes last, followed by `None`.
    pub async fn next(&mut self) -> Result<Option<StepResult>, ClientError> {
        let mut attempts = RetryAttempts::new(self.client.give_up);
        loop {
            match self.try_next().await {
                Ok(Some(response)) => {
                    self.next += 1;
                    return Ok(Some(response.result.unwrap_or_default()));
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.stream = None;
                    attempts.wait(error).await?;
                }
            }
        }
    }

    async fn try_next(&mut self) -> Result<Option<FollowStepsResponse>, ClientError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let offset = i32::try_from(self.next).unwrap_or(i32::MAX);
                let request = FollowStepsRequest { id: self.id.clone(), offset };
                let stream = self.client.document().follow_steps(request).await;
                self.stream.insert(self.client.response(stream)?)
            }
        };
        stream.message().await.map_err(|status| self.client.error(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_parsed_from_the_end_of_the_message() {
        assert_eq!(exit_code("step \"a\": exec: exit status 3"), Some(3));
        assert_eq!(exit_code("exec: exit status 1: exec: exit status 0x2a"), Some(42));
        for none in ["", "exit status 3 or so", "exec: signal: killed", "exit status "] {
            assert_eq!(exit_code(none), None, "{none}");
        }
    }
}
