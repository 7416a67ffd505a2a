//! A backend of a runner whose directories need not exist, for tests.

use std::os::fd::AsFd as _;
use std::path::PathBuf;

use super::backend::{KubernetesBackend, KubernetesParts};
use super::client::Cluster;
use super::own_pod::PodIdentity;
use super::settings::KubernetesSettings;
use crate::container_hook::audit::AuditLog;
use crate::container_hook::context::{HookContext, Log, Settings};
use crate::container_hook::runner::tests::runner;
use crate::image::{ClientOptions, Credentials, Progress, ProgressEvent, RegistryClient};

/// A log that nobody reads.
pub struct Quiet;

impl Progress for Quiet {
    fn event(&self, _: ProgressEvent<'_>) {}
}

impl Log for Quiet {
    fn group(&self, _: &str) {}
    fn end_group(&self) {}
    fn line(&self, _: &str) {}
    fn warning(&self, _: &str) {}
    fn debug(&self, _: &str) {}
    fn output(&self, _: &str, _: &[u8]) {}
}

/// Calls a function with the backend of the runner in the pod `runner-1`.
pub fn with_backend<T>(cluster: &Cluster, use_it: impl FnOnce(&KubernetesBackend<'_>) -> T) -> T {
    let (settings, runner, audit) = (Settings::default(), runner(), AuditLog::default());
    let identity =
        PodIdentity { name: "runner-1".to_owned(), claim: None, program: PathBuf::from("/hook") };
    let registries = RegistryClient::new(ClientOptions::default()).unwrap();
    let (kubernetes, credentials) = (KubernetesSettings::default(), Credentials::default());
    let stdout = std::io::stdout();
    let backend = KubernetesBackend::new(KubernetesParts {
        context: HookContext { settings: &settings, runner: &runner, audit: &audit, log: &Quiet },
        settings: &kubernetes,
        cluster,
        identity: &identity,
        registries: &registries,
        credentials: &credentials,
        signals: &|| Err(std::io::ErrorKind::Unsupported.into()),
        streams: [stdout.as_fd(), stdout.as_fd()],
    });
    use_it(&backend)
}
