//! A connection to a cluster: its address, its namespace, and the retry policy.

use std::fmt::{self, Debug, Formatter};
use std::future::Future;
use std::io;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use oci_hooks_files::fs::random_u64;
use tokio::runtime::{Builder, Runtime};

use super::error::{ClusterError, innermost_cause};

/// A connection to a cluster, and the namespace of the pods.
pub struct ClusterClient {
    runtime: Runtime,
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) policy: RetryPolicy,
    server: String,
}

impl ClusterClient {
    /// Returns the cluster that `KUBECONFIG` or `~/.kube/config` names, else the one in which this process is
    /// a pod. Does not contact the cluster.
    ///
    /// The namespace is the given one, else that of the kubeconfig's current context, else of the first
    /// context that has any, else the service account's.
    ///
    /// # Errors
    ///
    /// Fails if no cluster or no namespace is configured, or if the configuration cannot be read.
    pub fn connect(namespace: Option<&str>) -> Result<ClusterClient, ClusterError> {
        let runtime = runtime()?;
        let (config, namespace) = runtime.block_on(load(namespace))?;
        ClusterClient::new(runtime, config, namespace)
    }

    pub(super) fn new(
        runtime: Runtime,
        config: Config,
        namespace: String,
    ) -> Result<ClusterClient, ClusterError> {
        let server = config.cluster_url.to_string();
        // The client's buffer is a task of the runtime.
        let entered = runtime.enter();
        let client = Client::try_from(config)
            .map_err(|error| ClusterError::Connect { problem: innermost_cause(&error) })?;
        drop(entered);
        Ok(ClusterClient { runtime, client, namespace, policy: RetryPolicy::default(), server })
    }

    /// Returns the same cluster with another retry policy.
    #[must_use]
    pub fn with_retries(self, policy: RetryPolicy) -> ClusterClient {
        ClusterClient { policy, ..self }
    }

    /// Returns the namespace of all objects.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the URL of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Runs a future to its end. Tasks that it spawned are suspended until the next call.
    ///
    /// # Panics
    ///
    /// Panics inside another call of `run`.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

impl Debug for ClusterClient {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Cluster");
        shown.field("server", &self.server).field("namespace", &self.namespace).finish()
    }
}

pub(super) fn runtime() -> Result<Runtime, ClusterError> {
    Builder::new_current_thread().enable_all().build().map_err(ClusterError::Runtime)
}

/// Returns the connection's configuration and the namespace: the given one, else that of the kubeconfig's
/// current context, else of the first context that has any, else the service account's.
pub async fn load(namespace: Option<&str>) -> Result<(Config, String), ClusterError> {
    let given = namespace.filter(|namespace| !namespace.is_empty()).map(str::to_owned);
    let (mut config, own) = match Kubeconfig::read() {
        Ok(file) => {
            let own = namespace_of(&file);
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            (config.map_err(|error| ClusterError::Kubeconfig(Box::new(error)))?, own)
        }
        Err(error) if is_absent(&error) => {
            let config = Config::incluster().map_err(|error| {
                let in_cluster = Box::new(error);
                ClusterError::NotConfigured { in_cluster }
            })?;
            let own = Some(config.default_namespace.clone());
            (config, own)
        }
        Err(error) => return Err(ClusterError::Kubeconfig(Box::new(error))),
    };
    // Retries are implemented here, with rules for each call.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    let namespace = given.or(own).ok_or(ClusterError::NoNamespace)?;
    Ok((config, namespace))
}

fn is_absent(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

fn namespace_of(file: &Kubeconfig) -> Option<String> {
    let current =
        file.contexts.iter().filter(|one| Some(&one.name) == file.current_context.as_ref());
    let mut contexts = current.chain(&file.contexts).filter_map(|one| one.context.as_ref());
    let namespace = contexts.find_map(|context| context.namespace.clone());
    namespace.filter(|namespace| !namespace.is_empty())
}

/// Retry policy for temporary failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Pause after the first failure, doubled after each further one.
    pub first: Duration,
    /// Maximum pause. The server may ask for more.
    pub longest: Duration,
    /// Time since the start of a call after which it is not retried.
    pub limit: Duration,
    /// Time limit of a single attempt.
    pub answer: Duration,
}

impl Default for RetryPolicy {
    /// Returns a policy that outlasts the restart of an API server.
    fn default() -> Self {
        RetryPolicy {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            limit: Duration::from_secs(120),
            answer: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// Returns the policy for interactive commands, which retry for at most five seconds.
    #[must_use]
    pub fn brief() -> Self {
        RetryPolicy {
            limit: Duration::from_secs(5),
            answer: Duration::from_secs(10),
            ..Self::default()
        }
    }

    pub(super) fn pauses(&self) -> RetryPauses {
        RetryPauses { next: self.first, longest: self.longest }
    }
}

/// Growing pauses with a random part, so that callers that failed together do not retry together.
pub struct RetryPauses {
    next: Duration,
    longest: Duration,
}

impl RetryPauses {
    /// Returns the next pause, which is at least as long as the server asked for.
    pub fn next(&mut self, asked: Option<Duration>) -> Duration {
        let full = self.next.min(self.longest);
        self.next = full * 2;
        // Between half of the pause and all of it.
        let random = u32::try_from(random_u64() % 1000).unwrap_or_default();
        let pause = full / 2 + full / 2 * random / 1000;
        asked.map_or(pause, |asked| asked + pause.min(Duration::from_secs(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_context_precedes_the_first_with_a_namespace() {
        let file = |current: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: {current}\ncontexts:\n\
                 - {{name: a, context: {{cluster: c, user: u}}}}\n\
                 - {{name: b, context: {{cluster: c, user: u, namespace: of-b}}}}\n\
                 - {{name: c, context: {{cluster: c, user: u, namespace: of-c}}}}\n"
            );
            Kubeconfig::from_yaml(&text).unwrap()
        };
        assert_eq!(namespace_of(&file("c")).as_deref(), Some("of-c"));
        assert_eq!(namespace_of(&file("a")).as_deref(), Some("of-b"));
        assert_eq!(namespace_of(&Kubeconfig::default()), None);
    }

    #[test]
    fn pauses_grow_to_a_maximum_and_respect_retry_after() {
        let policy = RetryPolicy { longest: Duration::from_millis(350), ..RetryPolicy::default() };
        let mut pauses = policy.pauses();
        for full in [100, 200, 350, 350] {
            let pause = pauses.next(None);
            let full = Duration::from_millis(full);
            assert!(full / 2 <= pause && pause <= full, "{pause:?} of {full:?}");
        }
        let asked = Duration::from_secs(7);
        assert!(pauses.next(Some(asked)) >= asked);
    }
}
