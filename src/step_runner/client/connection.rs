//! Unary calls of the gRPC services.

use hyper_util::rt::TokioIo;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use tower::service_fn;

use super::super::wire::document::{self, step_runner_client::StepRunnerClient as DocumentClient};
use super::super::wire::proto::{self, step_runner_client::StepRunnerClient as GitLabClient};
use super::address::{Address, StderrTail};
use super::error::ClientError;
use super::follow::{Log, Steps};
use super::retry::{Retry, retry};

/// Size limit of a response: the result of a job contains those of all its steps.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// HTTP/2 window of a stream: how much of a log may be in flight.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// A gRPC client. Clones share one connection, which is opened on first use and reopened when it is
/// lost.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    retry: Retry,
    stderr: StderrTail,
}

impl Client {
    /// Returns a client of the server at an address. Must be called within a Tokio runtime.
    pub fn new(address: Address) -> Self {
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
        Client { channel, retry: Retry::default(), stderr }
    }

    /// Sets how long to retry while the server is unreachable.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        Client { retry, ..self }
    }

    /// Starts a job, unless a job with this id exists.
    pub async fn run(&self, request: proto::RunRequest) -> Result<(), ClientError> {
        // Retrying is safe: the id makes the call idempotent.
        retry(self.retry, || async { self.response(self.gitlab().run(request.clone()).await) })
            .await?;
        Ok(())
    }

    /// Follows the log of a job from an offset in bytes, and resumes after lost connections.
    pub fn follow_log(&self, id: &str, offset: u64) -> Log {
        Log::new(self.clone(), id, offset)
    }

    /// Follows the results of a job's steps, without the first `skip`, and resumes after lost
    /// connections. GitLab's step-runner does not implement it.
    pub fn follow_steps(&self, id: &str, skip: u32) -> Steps {
        Steps::new(self.clone(), id, skip)
    }

    /// Returns the status of a job, or of all jobs if the id is empty.
    pub async fn status(&self, id: &str) -> Result<Vec<proto::Status>, ClientError> {
        let request = || proto::StatusRequest { id: id.to_owned() };
        let ask = || async { self.response(self.gitlab().status(request()).await) };
        Ok(retry(self.retry, ask).await?.jobs)
    }

    /// Returns the status of a job, or of all jobs if the id is empty, in the form of the design
    /// document. GitLab's step-runner does not implement it.
    pub async fn document_status(&self, id: &str) -> Result<Vec<document::Status>, ClientError> {
        let request = || document::StatusRequest { id: id.to_owned() };
        let ask = || async { self.response(self.document().status(request()).await) };
        Ok(retry(self.retry, ask).await?.jobs)
    }

    /// Stops a job if it runs, without waiting for its end: steps run that ask for it by their condition,
    /// and the job stays on the server until it is closed. Servers before GitLab's 0.35 do not implement it.
    pub async fn cancel(&self, id: &str) -> Result<(), ClientError> {
        let request = || proto::CancelRequest { id: id.to_owned() };
        let ask = || async { self.response(self.gitlab().cancel(request()).await) };
        retry(self.retry, ask).await?;
        Ok(())
    }

    /// Stops a job if it runs, and removes it from the server. An unknown job is not an error.
    pub async fn close(&self, id: &str) -> Result<(), ClientError> {
        let request = || proto::CloseRequest { id: id.to_owned() };
        let ask = || async { self.response(self.gitlab().close(request()).await) };
        retry(self.retry, ask).await?;
        Ok(())
    }

    pub(super) fn gitlab(&self) -> GitLabClient<Channel> {
        GitLabClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn document(&self) -> DocumentClient<Channel> {
        DocumentClient::new(self.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
    }

    pub(super) fn response<T>(
        &self,
        result: Result<Response<T>, Status>,
    ) -> Result<T, ClientError> {
        result.map(Response::into_inner).map_err(|status| self.error(status))
    }

    pub(super) fn error(&self, status: Status) -> ClientError {
        ClientError::new(status, self.stderr.text())
    }

    pub(super) fn retry(&self) -> Retry {
        self.retry
    }
}
