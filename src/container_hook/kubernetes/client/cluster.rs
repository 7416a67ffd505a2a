//! A connection to a cluster: where it is, which namespace is ours, and when a call is made again.

use std::fmt::{self, Debug, Formatter};
use std::future::Future;
use std::io;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::runtime::{Builder, Runtime};

use super::error::{ClusterError, innermost};
use crate::sys::fs::random_u64;

/// A cluster, and the namespace that pods are made in.
pub struct Cluster {
    runtime: Runtime,
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) policy: RetryPolicy,
    server: String,
}

impl Cluster {
    /// Returns the cluster that `KUBECONFIG` or `~/.kube/config` names, else the one that this is a pod
    /// of. Nothing is asked of it yet.
    ///
    /// The namespace is the one that is given, else that of the kubeconfig's current context, else of the
    /// first context that has any, else the service account's.
    ///
    /// # Errors
    ///
    /// Fails if no cluster or no namespace is configured, or something that is configured cannot be read.
    pub fn connect(namespace: Option<&str>) -> Result<Cluster, ClusterError> {
        let runtime = runtime()?;
        let (config, namespace) = runtime.block_on(load(namespace))?;
        Cluster::new(runtime, config, namespace)
    }

    pub(super) fn new(
        runtime: Runtime,
        config: Config,
        namespace: String,
    ) -> Result<Cluster, ClusterError> {
        let server = config.cluster_url.to_string();
        // Its buffer is a task of the runtime.
        let entered = runtime.enter();
        let client = Client::try_from(config)
            .map_err(|error| ClusterError::Connect { problem: innermost(&error) })?;
        drop(entered);
        Ok(Cluster { runtime, client, namespace, policy: RetryPolicy::default(), server })
    }

    /// Returns the same cluster, whose calls are repeated like this.
    #[must_use]
    pub fn with_retries(self, policy: RetryPolicy) -> Cluster {
        Cluster { policy, ..self }
    }

    /// Returns the namespace that everything is in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the URL of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Runs a future to its end. What it started besides stands still until the next call.
    ///
    /// # Panics
    ///
    /// Panics inside of another call of it.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }
}

impl Debug for Cluster {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Cluster");
        shown.field("server", &self.server).field("namespace", &self.namespace).finish()
    }
}

pub(super) fn runtime() -> Result<Runtime, ClusterError> {
    Builder::new_current_thread().enable_all().build().map_err(ClusterError::Runtime)
}

/// Returns how to connect, and the namespace: the one that is given, else that of the kubeconfig's
/// current context, else of the first one that has any, else the service account's.
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
    // Repeating is our business: it has rules of its own for each call.
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

/// How calls that fail for a while are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The pause after the first failure; each one after it is twice as long.
    pub first: Duration,
    /// The longest pause that is our choice. The server may ask for more.
    pub longest: Duration,
    /// How long one call may take with all of its repetitions.
    pub limit: Duration,
    /// How long a single answer may take.
    pub answer: Duration,
}

impl Default for RetryPolicy {
    /// Outlasts the restart of an API server.
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
    /// For commands that somebody waits for at a terminal.
    #[must_use]
    pub fn brief() -> Self {
        RetryPolicy {
            limit: Duration::from_secs(5),
            answer: Duration::from_secs(10),
            ..Self::default()
        }
    }

    pub(super) fn pauses(&self) -> Pauses {
        Pauses { next: self.first, longest: self.longest }
    }
}

/// Pauses that grow, each with a random part: callers that failed together do not come back together.
pub struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    /// Returns the next pause, which is not shorter than what the server asked for.
    pub fn next(&mut self, asked: Option<Duration>) -> Duration {
        let full = self.next.min(self.longest);
        self.next = full * 2;
        // Between half of it and all of it.
        let random = u32::try_from(random_u64() % 1000).unwrap_or_default();
        let pause = full / 2 + full / 2 * random / 1000;
        asked.map_or(pause, |asked| asked + pause.min(Duration::from_secs(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_context_comes_before_the_first_that_has_a_namespace() {
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
    fn pauses_grow_to_the_longest_and_are_never_shorter_than_asked() {
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
