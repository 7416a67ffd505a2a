//! What the commands of the runner use of a cluster.

use std::io;
use std::os::fd::BorrowedFd;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::OnceCell;

use super::client::{Cluster, ClusterError};
use super::error::KubernetesError;
use super::files::{Limits, WorkFiles};
use super::own_pod::{OwnPod, PodIdentity};
use super::pod::{RUNNER_LABEL, runner_label};
use super::settings::KubernetesSettings;
use crate::container::StepSignals;
use crate::container_hook::context::HookContext;
use crate::container_hook::error::HookError;
use crate::container_hook::state::JobState;
use crate::image::{Credentials, RegistryClient};

/// The container of a pod that steps run in.
pub const JOB: &str = "job";

/// The backend that runs jobs as pods of a cluster.
pub struct KubernetesBackend<'a> {
    pub(super) context: HookContext<'a>,
    pub(super) settings: &'a KubernetesSettings,
    pub(super) cluster: &'a Cluster,
    pub(super) identity: &'a PodIdentity,
    pub(super) registries: &'a RegistryClient,
    pub(super) credentials: &'a Credentials,
    signals: &'a SignalSource<'a>,
    pub(super) streams: [BorrowedFd<'a>; 2],
    own: OnceCell<OwnPod>,
}

/// What begins to catch the signals that the runner sends.
pub type SignalSource<'a> = dyn Fn() -> io::Result<Box<dyn StepSignals>> + 'a;

/// What a [`KubernetesBackend`] is made of.
pub struct KubernetesParts<'a> {
    pub context: HookContext<'a>,
    pub settings: &'a KubernetesSettings,
    pub cluster: &'a Cluster,
    /// The pod of the runner.
    pub identity: &'a PodIdentity,
    /// Where is looked up what images run, and how they are healthy.
    pub registries: &'a RegistryClient,
    /// Logins for images whose login the request does not bring.
    pub credentials: &'a Credentials,
    pub signals: &'a SignalSource<'a>,
    /// Where the output and the errors of steps go.
    pub streams: [BorrowedFd<'a>; 2],
}

impl<'a> KubernetesBackend<'a> {
    /// Returns a backend; nothing is asked of the cluster yet.
    pub fn new(parts: KubernetesParts<'a>) -> Self {
        let KubernetesParts {
            context,
            settings,
            cluster,
            identity,
            registries,
            credentials,
            signals,
            streams,
        } = parts;
        KubernetesBackend {
            context,
            settings,
            cluster,
            identity,
            registries,
            credentials,
            signals,
            streams,
            own: OnceCell::new(),
        }
    }

    /// Begins to catch the signals of the runner.
    pub(super) fn catch_signals(&self) -> Result<Box<dyn StepSignals>, HookError> {
        (self.signals)().map_err(|error| KubernetesError::Signals(error).into())
    }

    /// Returns what the runner's own pod says; only what the environment does if there is no such pod.
    pub(super) async fn own(&self) -> Result<&OwnPod, ClusterError> {
        let find = || async {
            let pod = self.cluster.pod(&self.identity.name).await?;
            Ok(OwnPod::new(self.identity, pod.as_ref(), self.context.runner.work()))
        };
        self.own.get_or_try_init(find).await
    }

    /// Returns the files of the runner, for containers that get copies of them.
    pub(super) fn files(&self) -> Result<WorkFiles<'_>, HookError> {
        let limits = Limits { entries: self.settings.max_files, bytes: self.settings.max_bytes };
        let HookContext { runner, log, .. } = self.context;
        let files =
            WorkFiles::new(runner.work(), &runner.workspace, self.settings.back, limits, log);
        Ok(files?)
    }

    /// Returns what selects everything of this runner.
    pub(super) fn selector(&self) -> String {
        format!("{RUNNER_LABEL}={}", runner_label(&self.identity.name))
    }

    /// Returns the name of the job's pod, if the job is of this runner.
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
    use super::*;
    use crate::container_hook::kubernetes::client::testing::cluster;
    use crate::container_hook::kubernetes::testing::with_backend;
    use crate::container_hook::state::PodState;

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
    fn steps_run_in_pods_of_their_own_runner() {
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
