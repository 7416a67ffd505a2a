//! A backend of a runner whose directories need not exist, for tests.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Mutex;

use container_hook_job::audit::AuditLog;
use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::testing::runner;
use container_hook_job::{BuildCacheScope, HookContext, HookLog, HookSettings};
use oci_hooks_image::{ClientOptions, Credentials, ProgressEvent, PullProgress, RegistryClient};

use super::backend::{KubernetesBackend, KubernetesParts};
use super::client::ClusterClient;
use super::own_pod::PodIdentity;

/// A log that keeps its lines.
#[derive(Default)]
pub struct KeptLog(Mutex<Vec<String>>);

impl KeptLog {
    fn add(&self, kind: &str, text: &str) {
        self.0.lock().unwrap().push(format!("{kind}: {text}"));
    }

    /// Returns the lines so far, each after its kind, or the name of its container.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl PullProgress for KeptLog {
    fn event(&self, _: ProgressEvent<'_>) {}
}

impl HookLog for KeptLog {
    fn group(&self, _: &str) {}
    fn end_group(&self) {}
    fn line(&self, text: &str) {
        self.add("line", text);
    }
    fn warning(&self, text: &str) {
        self.add("warning", text);
    }
    fn debug(&self, text: &str) {
        self.add("debug", text);
    }
    fn output(&self, name: &str, text: &[u8]) {
        self.add(name, &String::from_utf8_lossy(text));
    }
}

/// Calls a function with the backend of the runner in the pod `runner-1`.
pub fn with_backend<T>(
    cluster: &ClusterClient,
    use_it: impl FnOnce(&KubernetesBackend<'_>) -> T,
) -> T {
    let (settings, runner, audit) = (HookSettings::default(), runner(), AuditLog::default());
    let identity =
        PodIdentity { name: "runner-1".to_owned(), claim: None, program: PathBuf::from("/hook") };
    let registries = RegistryClient::new(ClientOptions::default()).unwrap();
    let (kubernetes, credentials) = (KubernetesSettings::default(), Credentials::default());
    let (stdout, log) = (std::io::stdout(), KeptLog::default());
    let backend = KubernetesBackend::new(KubernetesParts {
        context: HookContext { settings: &settings, runner: &runner, audit: &audit, log: &log },
        settings: &kubernetes,
        build_cache: BuildCacheScope::default(),
        cluster,
        identity: &identity,
        registries: &registries,
        credentials: &credentials,
        signals: &|| Err(std::io::ErrorKind::Unsupported.into()),
        streams: [stdout.as_fd(), stdout.as_fd()],
    });
    use_it(&backend)
}
