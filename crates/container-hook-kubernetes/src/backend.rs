//! The Kubernetes backend and its inputs.

use std::cell::Cell;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;

use container_hook_job::BuildCacheScope;
use container_hook_job::HookContext;
use container_hook_job::HookError;
use container_hook_job::JobState;
use container_hook_job::kubernetes::KubernetesSettings;
use k8s_openapi::api::core::v1::Pod;
use oci_hooks_engine::container::StepSignals;
use oci_hooks_files::error::chain;
use oci_hooks_image::{Credentials, RegistryClient};
use tokio::sync::OnceCell;

use super::agent::AgentStep;
use super::client::{ClusterClient, ClusterError, ClusterOpener};
use super::error::SignalError;
use super::files::{ExchangeLimits, WorkFiles};
use super::image_volumes;
use super::own_pod::{OwnPod, PodIdentity};
use super::pod::{RUNNER_LABEL, runner_label};

/// Name of the container in which steps run.
pub const JOB: &str = "job";

/// Backend that runs jobs as pods of a cluster.
pub struct KubernetesBackend<'a> {
    pub(super) parts: KubernetesParts<'a>,
    own: OnceCell<OwnPod>,
}

/// A function that starts to catch the signals of the runner, and returns their source.
pub type SignalSource<'a> = dyn Fn() -> io::Result<Box<dyn StepSignals>> + 'a;

/// Parts of a [`KubernetesBackend`].
pub struct KubernetesParts<'a> {
    pub context: HookContext<'a>,
    pub settings: &'a KubernetesSettings,
    /// Determines which jobs share built images.
    pub build_cache: BuildCacheScope,
    pub cluster: &'a ClusterClient,
    pub identity: &'a PodIdentity,
    /// Registries that supply the entry points and health checks of images.
    pub registries: &'a RegistryClient,
    /// Registry logins for images without a login in the request.
    pub credentials: &'a Credentials,
    pub signals: &'a SignalSource<'a>,
    /// Standard output and standard error of steps.
    pub streams: [BorrowedFd<'a>; 2],
}

impl<'a> Deref for KubernetesBackend<'a> {
    type Target = KubernetesParts<'a>;

    fn deref(&self) -> &KubernetesParts<'a> {
        &self.parts
    }
}

impl<'a> KubernetesBackend<'a> {
    /// Returns a backend without contacting the cluster.
    pub fn new(parts: KubernetesParts<'a>) -> Self {
        KubernetesBackend { parts, own: OnceCell::new() }
    }

    /// Starts to catch the signals of the runner.
    pub(super) fn catch_signals(&self) -> Result<Box<dyn StepSignals>, HookError> {
        (self.signals)().map_err(|error| SignalError::Signals(error).into())
    }

    /// Returns the runner's own pod; if the cluster has no such pod, only the facts from the environment.
    pub(super) async fn own_pod(&self) -> Result<&OwnPod, ClusterError> {
        let find = || async {
            let pod = self.cluster.pod(&self.identity.name).await?;
            Ok(OwnPod::new(self.identity, pod.as_ref(), self.context.runner.work()))
        };
        self.own.get_or_try_init(find).await
    }

    /// Returns whether pods can mount the runner image.
    pub(super) async fn has_image_volumes(&self) -> Result<bool, ClusterError> {
        let own = self.own_pod().await?;
        let checked = image_volumes::check(self.cluster, self.settings, own).await;
        if let Err(reason) = &checked {
            self.context
                .log
                .debug(&format!("the agent comes from an init container: {}", chain(reason)));
        }
        Ok(checked.is_ok())
    }

    /// Returns the settings for a pod that does or does not mount the runner image.
    pub(super) fn settings_with(&self, image_volumes: bool) -> KubernetesSettings {
        KubernetesSettings { image_volumes: Some(image_volumes), ..self.settings.clone() }
    }

    /// Returns the files of the runner, for containers that get copies of them.
    pub(super) fn files(&self) -> Result<WorkFiles<'_>, HookError> {
        let limits =
            ExchangeLimits { entries: self.settings.max_files, bytes: self.settings.max_bytes.0 };
        let HookContext { runner, log, .. } = self.context;
        let files =
            WorkFiles::new(runner.work(), &runner.workspace, self.settings.back, limits, log);
        Ok(files?)
    }

    /// Returns the opener of streams to the agent of a container.
    pub(super) fn opener<'s>(&'s self, pod: &'s str, container: &'s str) -> ClusterOpener<'s> {
        let lost_timeout = self.settings.lost_timeout.0;
        let is_running = Cell::new(true);
        ClusterOpener { cluster: self.cluster, pod, container, lost_timeout, is_running }
    }

    /// Returns a step of this runner; `title` names its container in messages.
    pub(super) fn step<'s>(&'s self, id: &'s str, title: &'s str) -> AgentStep<'s> {
        let (streams, log) = (self.streams, self.context.log);
        AgentStep { id, title, streams, log, lost_timeout: self.settings.lost_timeout.0 }
    }

    /// Returns the label selector of all objects of this runner.
    pub(super) fn selector(&self) -> String {
        format!("{RUNNER_LABEL}={}", runner_label(&self.identity.name))
    }

    /// Returns the name of the job's pod, if the job belongs to this runner.
    pub(super) fn job_pod<'s>(&self, state: Option<&'s JobState>) -> Result<&'s str, HookError> {
        let found = state.and_then(|state| Some((state.job_pod.as_deref()?, state.pod.as_ref()?)));
        let (name, pod) = found.ok_or(HookError::NoState)?;
        let is_own = pod.runner == self.identity.name && pod.namespace == self.cluster.namespace();
        is_own.then_some(name).ok_or_else(|| HookError::Foreign { id: name.to_owned() })
    }
}

/// Returns the name of a pod; every pod of the API has one.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use container_hook_job::PodState;

    use super::*;
    use crate::client::testing::cluster;
    use crate::testing::with_backend;

    fn state(namespace: &str, runner: &str) -> JobState {
        let pod = PodState {
            namespace: namespace.to_owned(),
            uid: "u".to_owned(),
            runner: runner.to_owned(),
            copies: true,
        };
        let mut state = JobState::new(Some("c".to_owned()), Vec::new(), None);
        (state.job_pod, state.pod) = (Some("runner-1-workflow".to_owned()), Some(pod));
        state
    }

    #[test]
    fn steps_run_only_in_pods_of_their_runner() {
        let (cluster, _) = cluster(Vec::new());
        with_backend(&cluster, |backend| {
            let own = state("ns", "runner-1");
            assert_eq!(backend.job_pod(Some(&own)).unwrap(), "runner-1-workflow");
            for (namespace, runner) in [("ns", "runner-2"), ("other", "runner-1")] {
                let error = backend.job_pod(Some(&state(namespace, runner))).unwrap_err();
                assert!(matches!(error, HookError::Foreign { .. }), "{error}");
            }
            let of_one_host = JobState::new(Some("c".to_owned()), Vec::new(), None);
            for state in [None, Some(&of_one_host)] {
                let error = backend.job_pod(state).unwrap_err();
                assert!(matches!(error, HookError::NoState), "{error}");
            }
        });
    }
}
