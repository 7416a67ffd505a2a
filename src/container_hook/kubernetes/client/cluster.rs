//! A connection to a cluster.

use std::fmt::{self, Debug, Formatter};
use std::future::Future;

use kube::Client;
use kube::Config;
use tokio::runtime::{Builder, Runtime};

use super::config;
use super::error::{ClusterError, innermost};
use super::retry::RetryPolicy;

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
        let (config, namespace) = runtime.block_on(config::load(namespace))?;
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
