//! Streams to the agent of a container.

use std::cell::Cell;
use std::future::Future;
use std::io::Cursor;
use std::pin::Pin;
use std::time::Duration;

use oci_hooks_files::error::chain;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::exec::{ExecEnd, ExecStream};
use super::{ClusterClient, ClusterError};
use crate::agent::{AgentLink, LinkFuture, LinkOpener, PROGRAM, STATE};
use crate::wait::ended;

/// Timeout for the first output of the agent.
const HELLO: Duration = Duration::from_secs(20);
/// Number and duration of failures to start the agent in a running container after which no other
/// attempt is made. A node whose kubelet restarts fails for a moment.
const FAILURES: (u32, Duration) = (5, Duration::from_secs(10));
/// Shortest and longest pause between attempts; between them it is a tenth of the time since the first attempt.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Time in which the cluster may report the reason for a container's end, and poll interval for
/// that reason.
const REASON: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(500));
/// Maximum number of bytes kept of the agent's stderr.
const MAX_STDERR_BYTES: u64 = 4 << 10;

/// Opens streams to the agent of one container, by `exec`.
pub struct ClusterOpener<'a> {
    pub(crate) cluster: &'a ClusterClient,
    pub(crate) pod: &'a str,
    pub(crate) container: &'a str,
    /// Maximum time for which an existing container may be unreachable.
    pub(crate) lost_timeout: Duration,
    /// If not set, the container may not have started yet, and failures are ignored.
    pub(crate) is_running: Cell<bool>,
}

/// Final errors of opening a stream.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Ended(#[from] ended::ContainerEnd),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("the agent cannot be started in container {container} of pod {pod}: {problem}")]
    Agent { pod: String, container: String, problem: String },
    #[error("container {container} of pod {pod} has not been reachable for {seconds} s: {problem}")]
    Unreachable { pod: String, container: String, seconds: u64, problem: String },
}

/// Reasons of one failed attempt.
enum OpenFailure {
    Passing(String),
    /// The agent did not start, or ended.
    Program(String),
}

impl ClusterOpener<'_> {
    /// Returns an opener for a container that may not run yet, until [`Self::mark_running`]. The kubelet accepts a
    /// stream as soon as the container runs, up to a second before the API server reports the container as running.
    pub(crate) fn starting(self) -> Self {
        ClusterOpener { is_running: Cell::new(false), ..self }
    }

    /// Records that the container runs: later failures are reported.
    pub(crate) fn mark_running(&self) {
        self.is_running.set(true);
    }

    async fn open_link(&self) -> Result<AgentLink, OpenError> {
        let (pod, container) = (self.pod.to_owned(), self.container.to_owned());
        let first = Instant::now();
        let (mut began, mut failures) = (first, 0);
        loop {
            let problem = match self.open_once().await {
                Ok(link) => {
                    // Else the end of a container that ran before its pod was ready would not be reported.
                    self.is_running.set(true);
                    return Ok(link);
                }
                Err(OpenFailure::Program(problem)) => {
                    failures += 1;
                    problem
                }
                Err(OpenFailure::Passing(problem)) => problem,
            };
            if self.is_running.get() {
                debug!(pod, container, problem, "cannot open a stream to the agent");
                self.check_container().await?;
                if failures >= FAILURES.0 && began.elapsed() > FAILURES.1 {
                    return Err(OpenError::Agent { pod, container, problem });
                }
                if began.elapsed() > self.lost_timeout {
                    let seconds = began.elapsed().as_secs();
                    return Err(OpenError::Unreachable { pod, container, seconds, problem });
                }
            } else {
                (began, failures) = (Instant::now(), 0);
            }
            sleep((first.elapsed() / 10).clamp(PAUSES.0, PAUSES.1)).await;
        }
    }

    /// Fails if the container has ended or its pod is deleted. An unreachable API server is no error.
    async fn check_container(&self) -> Result<(), OpenError> {
        let began = Instant::now();
        let mut answer = self.cluster.pod(self.pod).await;
        // Kubelets of Kubernetes 1.36 report the end of an evicted container up to a second before the eviction.
        while let Ok(Some(pod)) = &answer
            && ended::may_be_explained(pod, self.pod, self.container)
            && began.elapsed() < REASON.0
        {
            sleep(REASON.1).await;
            answer = self.cluster.pod(self.pod).await;
        }
        match answer {
            Ok(pod) => Ok(ended::check(pod.as_ref(), self.pod, self.container)?),
            Err(error) if error.is_temporary() || error.is_denied() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn open_once(&self) -> Result<AgentLink, OpenFailure> {
        let call = [PROGRAM, "call", STATE];
        let started = self.cluster.exec(self.pod, self.container, &call, true).await;
        let exec = started.map_err(|error| match error.rejection().map(|answer| answer.code) {
            // A restarted server does not know its Roles yet, and a restarted node may not know the
            // container yet.
            Some(400 | 401 | 403 | 404) => OpenFailure::Program(chain(&error)),
            _ => OpenFailure::Passing(chain(&error)),
        })?;
        wait_for_first_output(exec).await
    }
}

/// Waits for the agent's first output, which proves that it was started.
async fn wait_for_first_output(exec: ExecStream) -> Result<AgentLink, OpenFailure> {
    let (stdin, mut stdout, stderr, end) = exec.into_parts();
    let mut first = vec![0; 4 << 10];
    match timeout(HELLO, stdout.read(&mut first)).await {
        Ok(Ok(count)) if count > 0 => {
            first.truncate(count);
            tokio::spawn(note(stderr));
            return Ok(AgentLink::new(stdin, Cursor::new(first).chain(stdout)));
        }
        Ok(_) => {}
        Err(_) => {
            return Err(OpenFailure::Passing(format!(
                "the agent sent no output within {} s",
                HELLO.as_secs()
            )));
        }
    }
    let mut said = Vec::new();
    // A read error still leaves the part that was read.
    let _ = stderr.take(MAX_STDERR_BYTES).read_to_end(&mut said).await;
    let said = String::from_utf8_lossy(&said);
    let said = said.trim();
    Err(match end.await {
        ExecEnd::Exited(code) if said.is_empty() => {
            OpenFailure::Program(format!("the agent ended with code {code}"))
        }
        ExecEnd::Exited(code) => {
            OpenFailure::Program(format!("the agent ended with code {code}: {said}"))
        }
        ExecEnd::Failed(message) => OpenFailure::Program(message),
        ExecEnd::Lost(problem) => OpenFailure::Passing(problem),
    })
}

/// Logs the first bytes of the agent's stderr, and discards the rest.
async fn note(stderr: impl AsyncRead + Unpin) {
    let mut said = Vec::new();
    if stderr.take(MAX_STDERR_BYTES).read_to_end(&mut said).await.is_ok() && !said.is_empty() {
        debug!(stderr = %String::from_utf8_lossy(&said), "stderr of the agent");
    }
}

impl LinkOpener for ClusterOpener<'_> {
    fn open(&self) -> LinkFuture<'_> {
        Box::pin(async { self.open_link().await.map_err(Into::into) })
    }

    fn describe(&self) -> Pin<Box<dyn Future<Output = String> + '_>> {
        Box::pin(async {
            match self.cluster.pod(self.pod).await {
                Ok(pod) => ended::describe(pod.as_ref(), self.pod, self.container),
                Err(error) => chain(&error),
            }
        })
    }
}
