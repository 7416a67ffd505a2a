//! Asking a server.

use hyper_util::rt::TokioIo;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use tower::service_fn;

use super::super::wire::document::{self, step_runner_client::StepRunnerClient as DocumentClient};
use super::super::wire::proto::{self, step_runner_client::StepRunnerClient as GitLabClient};
use super::address::{Address, Said};
use super::error::ClientError;
use super::follow::{Log, Steps};
use super::retry::{Retry, retry};

/// How large an answer may be: the result of a job has those of all its steps.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// How much of a log may be on its way.
const STREAM_BYTES: u32 = 1 << 20;

/// A client of a server. Clones share its connection, which is made when it is needed, and made
/// again when it is lost.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    retry: Retry,
    said: Said,
}

impl Client {
    /// Returns a client of the server at an address, within a Tokio runtime.
    pub fn new(address: Address) -> Self {
        let said = Said::default();
        let heard = said.clone();
        let connect = service_fn(move |_: Uri| {
            let (address, said) = (address.clone(), heard.clone());
            async move { address.connect(said).await.map(TokioIo::new) }
        });
        // The name is never looked up: the connector knows where the server is.
        let channel = Endpoint::from_static("http://step-runner")
            .initial_stream_window_size(STREAM_BYTES)
            .initial_connection_window_size(4 * STREAM_BYTES)
            .connect_with_connector_lazy(connect);
        Client { channel, retry: Retry::default(), said }
    }

    /// Sets how long a server is looked for that cannot be reached.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        Client { retry, ..self }
    }

    /// Starts a job, unless there is one of that id.
    pub async fn run(&self, request: proto::RunRequest) -> Result<(), ClientError> {
        // Asking again is harmless: the id tells that it is the same job.
        retry(self.retry, || async { self.answer(self.gitlab().run(request.clone()).await) })
            .await?;
        Ok(())
    }

    /// Reads the log of a job from an offset on, through lost connections.
    pub fn follow_log(&self, id: &str, offset: u64) -> Log {
        Log::new(self.clone(), id, offset)
    }

    /// Reads the results of a job's steps, without the first few, through lost connections. Only
    /// our own server has it.
    pub fn follow_steps(&self, id: &str, skip: u32) -> Steps {
        Steps::new(self.clone(), id, skip)
    }

    /// Returns the state of a job, or of all if there is no id.
    pub async fn status(&self, id: &str) -> Result<Vec<proto::Status>, ClientError> {
        let request = || proto::StatusRequest { id: id.to_owned() };
        let ask = || async { self.answer(self.gitlab().status(request()).await) };
        Ok(retry(self.retry, ask).await?.jobs)
    }

    /// Returns the state of a job, or of all if there is no id, as the design document has it. Only
    /// our own server has it.
    pub async fn document_status(&self, id: &str) -> Result<Vec<document::Status>, ClientError> {
        let request = || document::StatusRequest { id: id.to_owned() };
        let ask = || async { self.answer(self.document().status(request()).await) };
        Ok(retry(self.retry, ask).await?.jobs)
    }

    /// Stops a job if it runs, and has the server forget it. That there is none is as well.
    pub async fn close(&self, id: &str) -> Result<(), ClientError> {
        let request = || proto::CloseRequest { id: id.to_owned() };
        let ask = || async { self.answer(self.gitlab().close(request()).await) };
        retry(self.retry, ask).await?;
        Ok(())
    }

    pub(super) fn gitlab(&self) -> GitLabClient<Channel> {
        GitLabClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    pub(super) fn document(&self) -> DocumentClient<Channel> {
        DocumentClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    pub(super) fn answer<T>(&self, result: Result<Response<T>, Status>) -> Result<T, ClientError> {
        result.map(Response::into_inner).map_err(|status| self.error(status))
    }

    pub(super) fn error(&self, status: Status) -> ClientError {
        ClientError::new(status, self.said.text())
    }

    pub(super) fn retry(&self) -> Retry {
        self.retry
    }
}
