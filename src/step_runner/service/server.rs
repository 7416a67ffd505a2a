//! The gRPC server and its shutdown.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tower::layer::layer_fn;

use super::super::jobs::{Jobs, Variables, either};
use super::super::socket::Listener;
use super::super::wire::document::step_runner_server::StepRunnerServer as DocumentServer;
use super::super::wire::proto::step_runner_server::StepRunnerServer as GitLabServer;
use super::document::Document;
use super::gitlab::GitLab;
use super::health::Health;
use super::incoming::Incoming;
use super::panics::CatchPanics;

/// Size limit of a request, which contains the steps of a job.
const MAX_REQUEST_BYTES: usize = 16 << 20;

/// Limit of concurrent streams of a connection.
const MAX_STREAMS: u32 = 256;

/// A connection that could not be served, for the log of the server.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// A connection of another user was rejected.
    Rejected { uid: u32 },
    /// A connection could not be accepted.
    Accept(io::Error),
}

/// Callback for notices.
pub(super) type Notify = Arc<dyn Fn(&Notice) + Send + Sync>;

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Rejected { uid } => write!(f, "rejected connection from user {uid}"),
            Notice::Accept(error) => write!(f, "cannot accept connection: {error}"),
        }
    }
}

/// An error of the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The server cannot listen on the socket.
    #[error("cannot listen on {path}")]
    Listen { path: String, source: io::Error },
    #[error("gRPC server failed")]
    Serve(#[source] tonic::transport::Error),
}

/// Timeouts of the shutdown.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Timing {
    /// Grace period for running jobs before they are cancelled.
    pub drain: Duration,
    /// How long clients may then read the remaining log.
    pub linger: Duration,
}

impl Timing {
    /// Returns these timeouts.
    pub fn new(drain: Duration, linger: Duration) -> Self {
        Timing { drain, linger }
    }
}

/// The gRPC server with both services.
#[derive(Clone)]
pub struct Server {
    jobs: Jobs,
    variables: Variables,
    notify: Notify,
}

impl Server {
    /// Returns a server for these jobs. `variables` applies to variables sent by GitLab's service.
    pub fn new(
        jobs: Jobs,
        variables: Variables,
        notify: impl Fn(&Notice) + Send + Sync + 'static,
    ) -> Self {
        Server { jobs, variables, notify: Arc::new(notify) }
    }

    /// Serves until `stop` completes. Then waits for jobs or cancels them, while clients are still
    /// served; streams are sent to their end; then connections are closed.
    pub async fn serve(
        self,
        listener: &Listener,
        stop: impl Future<Output = ()>,
        timing: Timing,
    ) -> Result<(), ServeError> {
        let listen =
            |source| ServeError::Listen { path: listener.path().display().to_string(), source };
        let socket = listener.socket().and_then(UnixListener::from_std).map_err(listen)?;
        let incoming = Incoming { listener: socket, notify: self.notify.clone(), pause: None };
        let gitlab = GitLab { jobs: self.jobs.clone(), variables: self.variables };
        let document = Document { jobs: self.jobs.clone() };
        let (health, health_service) = Health::serving().await;
        let (end, ended) = oneshot::channel::<()>();
        let served = tonic::transport::Server::builder()
            .max_concurrent_streams(MAX_STREAMS)
            .layer(layer_fn(CatchPanics))
            .add_service(health_service)
            .add_service(GitLabServer::new(gitlab).max_decoding_message_size(MAX_REQUEST_BYTES))
            .add_service(DocumentServer::new(document).max_decoding_message_size(MAX_REQUEST_BYTES))
            .serve_with_incoming_shutdown(incoming, async {
                // An error means that the sender is gone, which is the end as well.
                let _ = ended.await;
            });
        let mut served = tokio::spawn(served);
        let pruning = tokio::spawn({
            let jobs = self.jobs.clone();
            async move { jobs.prune().await }
        });

        let mut failed = None;
        either(stop, async { failed = Some((&mut served).await) }).await;
        health.stop().await;
        if failed.is_none() {
            self.jobs.drain(timing.drain).await;
        }
        self.jobs.stop().await;
        pruning.abort();
        health.end().await;
        drop(end);
        if failed.is_none() {
            failed = tokio::time::timeout(timing.linger, &mut served).await.ok();
            served.abort();
        }
        match failed {
            Some(Ok(result)) => result.map_err(ServeError::Serve),
            // A client reads too slowly.
            Some(Err(_)) | None => Ok(()),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}
