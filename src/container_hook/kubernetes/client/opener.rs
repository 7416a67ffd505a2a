//! Streams to the agent of a container.

use std::error::Error;
use std::future::Future;
use std::io::Cursor;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::exec::{Exec, ExecEnd};
use super::{Cluster, ClusterError};
use crate::container_hook::kubernetes::agent::{Link, Opener, PROGRAM, STATE};
use crate::container_hook::kubernetes::wait::ended;
use crate::sys::error::chain;

/// How long a container that is there may be unreachable: a step whose hook is away for longer is
/// killed by its agent.
const LIMIT: Duration = Duration::from_secs(300);
/// How long the agent may take to say its first word.
const HELLO: Duration = Duration::from_secs(20);
/// How often, and for how long at least, the program may fail to start in a container that runs: a node
/// whose kubelet is being restarted says so too for a moment.
const FAILURES: (u32, Duration) = (5, Duration::from_secs(10));
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// What is kept of what the program says on its error output.
const MAX_STDERR_BYTES: u64 = 4 << 10;

/// Opens streams to the agent of one container, by `exec`.
pub struct ClusterOpener<'a> {
    cluster: &'a Cluster,
    pod: &'a str,
    container: &'a str,
}

/// Why there will be no more stream.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Ended(#[from] ended::ContainerEnd),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("the agent cannot be started in container {container} of pod {pod}: {problem}")]
    Agent { pod: String, container: String, problem: String },
    #[error(
        "container {container} of pod {pod} cannot be reached for {} minutes: {problem}",
        LIMIT.as_secs() / 60
    )]
    Unreachable { pod: String, container: String, problem: String },
}

/// Why one stream did not come to be.
enum Failure {
    /// It may the next time.
    Passing(String),
    /// The program did not start, or ended.
    Program(String),
}

impl<'a> ClusterOpener<'a> {
    /// Returns what opens streams to the agent of a container.
    #[must_use]
    pub fn new(cluster: &'a Cluster, pod: &'a str, container: &'a str) -> Self {
        ClusterOpener { cluster, pod, container }
    }

    /// Returns a stream if the container takes one now; none if it does not yet, for whatever reason.
    pub(in crate::container_hook::kubernetes) async fn try_open(&self) -> Option<Link> {
        self.once().await.ok()
    }

    async fn until_open(&self) -> Result<Link, OpenError> {
        let (pod, container) = (self.pod.to_owned(), self.container.to_owned());
        let began = Instant::now();
        let mut failures = 0;
        let mut pause = PAUSE.0;
        loop {
            let problem = match self.once().await {
                Ok(link) => return Ok(link),
                Err(Failure::Program(problem)) => {
                    failures += 1;
                    problem
                }
                Err(Failure::Passing(problem)) => problem,
            };
            debug!(pod, container, problem, "no stream to the agent");
            self.look().await?;
            if failures >= FAILURES.0 && began.elapsed() > FAILURES.1 {
                return Err(OpenError::Agent { pod, container, problem });
            }
            if began.elapsed() > LIMIT {
                return Err(OpenError::Unreachable { pod, container, problem });
            }
            sleep(pause).await;
            pause = PAUSE.1.min(pause * 2);
        }
    }

    /// Fails if the container has ended or its pod is gone. That the API server is away says nothing.
    async fn look(&self) -> Result<(), OpenError> {
        match self.cluster.pod(self.pod).await {
            Ok(pod) => Ok(ended::check(pod.as_ref(), self.pod, self.container)?),
            Err(error) if error.may_pass() || error.is_denied() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn once(&self) -> Result<Link, Failure> {
        let call = [PROGRAM, "call", STATE];
        let exec = self.cluster.exec(self.pod, self.container, &call).await.map_err(|error| {
            match error.refusal().map(|refusal| refusal.code) {
                // A server that has just been started does not know its Roles yet; nor does the node know the
                // container, or not yet again.
                Some(400 | 401 | 403 | 404) => Failure::Program(chain(&error)),
                _ => Failure::Passing(chain(&error)),
            }
        })?;
        first_word(exec).await
    }
}

/// Waits until the program has said something: only then it has been started.
async fn first_word(exec: Exec) -> Result<Link, Failure> {
    let (stdin, mut stdout, stderr, end) = exec.into_parts();
    let mut first = vec![0; 4 << 10];
    match timeout(HELLO, stdout.read(&mut first)).await {
        Ok(Ok(count)) if count > 0 => {
            first.truncate(count);
            tokio::spawn(note(stderr));
            return Ok(Link::new(stdin, Cursor::new(first).chain(stdout)));
        }
        Ok(_) => {}
        Err(_) => return Err(Failure::Passing("the agent says nothing".to_owned())),
    }
    let mut said = Vec::new();
    // What there is of it; it says more than nothing.
    let _ = stderr.take(MAX_STDERR_BYTES).read_to_end(&mut said).await;
    let said = String::from_utf8_lossy(&said);
    let said = said.trim();
    Err(match end.await {
        ExecEnd::Exited(code) if said.is_empty() => {
            Failure::Program(format!("it ended with code {code}"))
        }
        ExecEnd::Exited(code) => Failure::Program(format!("it ended with code {code}: {said}")),
        ExecEnd::Failed(message) => Failure::Program(message),
        ExecEnd::Lost(problem) => Failure::Passing(problem),
    })
}

/// Keeps the error output from filling up.
async fn note(stderr: impl AsyncRead + Unpin) {
    let mut said = Vec::new();
    if stderr.take(MAX_STDERR_BYTES).read_to_end(&mut said).await.is_ok() && !said.is_empty() {
        debug!(stderr = %String::from_utf8_lossy(&said), "the agent");
    }
}

impl Opener for ClusterOpener<'_> {
    fn open(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<Link, Box<dyn Error + Send + Sync>>> + '_>> {
        Box::pin(async { self.until_open().await.map_err(Into::into) })
    }
}
