//! The gRPC server and its shutdown.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, unfold};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tower::layer::layer_fn;

use super::super::http2::AuthorityStream;
use super::super::jobs::{JobRegistry, VariableMode, wait_for_either};
use super::super::socket::SocketListener;
use super::super::wire::document::step_runner_server::StepRunnerServer as DocumentServer;
use super::super::wire::proto::step_runner_server::StepRunnerServer as GitLabServer;
use super::document::DesignDocumentService;
use super::gitlab::GitLabService;
use super::stream::CatchPanics;

/// Size limit of a request, which contains the steps of a job.
const MAX_REQUEST_BYTES: usize = 16 << 20;

/// Limit of concurrent streams of a connection.
const MAX_STREAMS: u32 = 256;

/// A connection that could not be served, for the log of the server.
#[derive(Debug)]
pub enum ServerNotice {
    /// A connection of another user was rejected.
    Rejected { uid: u32 },
    /// A connection could not be accepted.
    Accept(io::Error),
}

type NoticeCallback = Arc<dyn Fn(&ServerNotice) + Send + Sync>;

impl fmt::Display for ServerNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerNotice::Rejected { uid } => write!(
                f,
                "rejected connection from user {uid}: only root and the server's user may connect"
            ),
            ServerNotice::Accept(error) => write!(f, "cannot accept connection: {error}"),
        }
    }
}

/// An error of the server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The server cannot listen on the socket.
    #[error("cannot listen on {path}")]
    Listen { path: String, source: io::Error },
    #[error("gRPC server failed")]
    Serve(#[source] tonic::transport::Error),
}

/// Timeouts of the shutdown.
#[derive(Clone, Copy, Debug)]
pub struct ShutdownTiming {
    /// Grace period for running jobs before they are cancelled.
    pub drain: Duration,
    /// Time limit for clients to read the rest of the logs after all jobs have ended.
    pub linger: Duration,
}

/// The gRPC server with GitLab's service and that of GitLab's design document.
#[derive(Clone)]
pub struct GrpcServer {
    jobs: JobRegistry,
    variables: VariableMode,
    notify: NoticeCallback,
}

impl GrpcServer {
    /// Returns a server for the jobs of a registry. `variables` is the treatment of variables in
    /// requests to GitLab's service.
    pub fn new(
        jobs: JobRegistry,
        variables: VariableMode,
        notify: impl Fn(&ServerNotice) + Send + Sync + 'static,
    ) -> Self {
        GrpcServer { jobs, variables, notify: Arc::new(notify) }
    }

    /// Serves until `stop` completes. Then accepts no more jobs, and waits for running ones or
    /// cancels them, while clients are still served. Finally waits until clients have read their
    /// streams, at most for [`ShutdownTiming::linger`], and closes connections.
    pub async fn serve(
        self,
        listener: &SocketListener,
        stop: impl Future<Output = ()>,
        timing: ShutdownTiming,
    ) -> Result<(), ServeError> {
        let listen =
            |source| ServeError::Listen { path: listener.path().display().to_string(), source };
        let socket = listener.socket().and_then(UnixListener::from_std).map_err(listen)?;
        let incoming = accept_connections(socket, self.notify.clone());
        let gitlab = GitLabService { jobs: self.jobs.clone(), variables: self.variables };
        let document = DesignDocumentService { jobs: self.jobs.clone() };
        let (mut health, health_service) = health_reporter();
        set_health(&health, ServingStatus::Serving).await;
        let (end, ended) = oneshot::channel::<()>();
        let served = tonic::transport::Server::builder()
            .max_concurrent_streams(MAX_STREAMS)
            .layer(layer_fn(CatchPanics))
            .add_service(health_service)
            .add_service(GitLabServer::new(gitlab).max_decoding_message_size(MAX_REQUEST_BYTES))
            .add_service(DocumentServer::new(document).max_decoding_message_size(MAX_REQUEST_BYTES))
            .serve_with_incoming_shutdown(incoming, async {
                // An error means that the sender is gone, which ends serving as well.
                let _ = ended.await;
            });
        let mut served = tokio::spawn(served);
        let pruning = tokio::spawn({
            let jobs = self.jobs.clone();
            async move { jobs.prune().await }
        });

        let mut failed = None;
        wait_for_either(stop, async { failed = Some((&mut served).await) }).await;
        set_health(&health, ServingStatus::NotServing).await;
        if failed.is_none() {
            self.jobs.drain(timing.drain).await;
        }
        self.jobs.stop().await;
        pruning.abort();
        // Ends the streams of clients that watch the health status: the server waits for open streams before it stops.
        for name in NAMES {
            health.clear_service_status(name).await;
        }
        drop(end);
        if failed.is_none() {
            failed = tokio::time::timeout(timing.linger, &mut served).await.ok();
            served.abort();
        }
        match failed {
            Some(Ok(result)) => result.map_err(ServeError::Serve),
            Some(Err(error)) if error.is_panic() => panic::resume_unwind(error.into_panic()),
            // A client reads too slowly.
            Some(Err(_)) | None => Ok(()),
        }
    }
}

/// Names that health checks accept: the empty name of the whole server, and those of its services.
const NAMES: [&str; 3] = [
    "",
    <GitLabServer<GitLabService> as NamedService>::NAME,
    <DocumentServer<DesignDocumentService> as NamedService>::NAME,
];

async fn set_health(health: &HealthReporter, status: ServingStatus) {
    for name in NAMES {
        health.set_service_status(name, status).await;
    }
}

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections of trusted users, and reports others.
fn accept_connections(
    listener: UnixListener,
    notify: NoticeCallback,
) -> impl Stream<Item = io::Result<AuthorityStream<UnixStream>>> {
    unfold((listener, notify), |(listener, notify)| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if is_trusted(peer.uid()) => {
                        let accepted = Ok::<_, io::Error>(AuthorityStream::new(stream));
                        return Some((accepted, (listener, notify)));
                    }
                    Ok(peer) => notify(&ServerNotice::Rejected { uid: peer.uid() }),
                    Err(error) => notify(&ServerNotice::Accept(error)),
                },
                Err(error) => {
                    notify(&ServerNotice::Accept(error));
                    // After an error such as EMFILE, an immediate retry would be a busy loop.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    })
}

/// Returns whether a user may connect. The socket's mode excludes others, but might have been changed.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
