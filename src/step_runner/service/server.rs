//! Serving until it is said to stop.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::oneshot;

use super::super::jobs::{Jobs, Variables, either};
use super::super::socket::Listener;
use super::super::wire::document::step_runner_server::StepRunnerServer as DocumentServer;
use super::super::wire::proto::step_runner_server::StepRunnerServer as GitLabServer;
use super::document::Document;
use super::gitlab::GitLab;
use super::incoming::Incoming;

/// How large a request may be: steps of a job may be long.
const MAX_REQUEST_BYTES: usize = 16 << 20;

/// How many streams a connection may have at once.
const MAX_STREAMS: u32 = 256;

/// What happened to a connection; nobody else hears of it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice {
    /// Another user wanted to connect.
    Refused {
        /// Who.
        uid: u32,
    },
    /// A connection could not be taken.
    Accept(io::Error),
}

/// Is told what happens.
pub(super) type Notify = Arc<dyn Fn(&Notice) + Send + Sync>;

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Refused { uid } => write!(f, "refused a connection of user {uid}"),
            Notice::Accept(error) => write!(f, "cannot take a connection: {error}"),
        }
    }
}

/// Why it cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The socket cannot be used.
    #[error("cannot listen on {path}")]
    Listen {
        /// The socket.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The connections cannot be served.
    #[error("cannot serve")]
    Serve(#[source] tonic::transport::Error),
}

/// How long jobs and clients have at the end.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long jobs may go on before they are stopped.
    pub drain: Duration,
    /// How long clients may read what is left to read after that.
    pub linger: Duration,
}

/// Both services.
#[derive(Clone)]
pub struct Server {
    jobs: Jobs,
    variables: Variables,
    notify: Notify,
}

impl Server {
    /// Returns the services for these jobs. `variables` says what becomes of variables that come by
    /// GitLab's service.
    pub fn new(
        jobs: Jobs,
        variables: Variables,
        notify: impl Fn(&Notice) + Send + Sync + 'static,
    ) -> Self {
        Server { jobs, variables, notify: Arc::new(notify) }
    }

    /// Serves until `stop` is done. Then jobs end, by themselves or stopped, while clients are still
    /// answered; what they follow is sent to its end; and what is open then is closed.
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
        let (end, ended) = oneshot::channel::<()>();
        let served = tonic::transport::Server::builder()
            .max_concurrent_streams(MAX_STREAMS)
            .add_service(GitLabServer::new(gitlab).max_decoding_message_size(MAX_REQUEST_BYTES))
            .add_service(DocumentServer::new(document).max_decoding_message_size(MAX_REQUEST_BYTES))
            .serve_with_incoming_shutdown(incoming, async {
                // It fails when the sender is gone, which is the end as well.
                let _ = ended.await;
            });
        let mut served = tokio::spawn(served);
        let pruning = tokio::spawn({
            let jobs = self.jobs.clone();
            async move { jobs.prune().await }
        });

        let mut failed = None;
        either(stop, async { failed = Some((&mut served).await) }).await;
        if failed.is_none() {
            self.jobs.drain(timing.drain).await;
        }
        self.jobs.stop().await;
        pruning.abort();
        drop(end);
        if failed.is_none() {
            failed = tokio::time::timeout(timing.linger, &mut served).await.ok();
            served.abort();
        }
        match failed {
            Some(Ok(result)) => result.map_err(ServeError::Serve),
            // Somebody reads too slowly.
            Some(Err(_)) | None => Ok(()),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}
