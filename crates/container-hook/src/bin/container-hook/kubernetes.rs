//! Carries out a request of the runner with pods of a cluster, without the engine and its root-owned
//! directories: runners in pods are ordinary users.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::request::HookRequest;
use container_hook_kubernetes::{ClusterClient, KubernetesBackend, KubernetesParts, PodIdentity};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::StepSignals;
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_engine_cli::settings_file::LoadedSettings;
use oci_hooks_files::quantity::Age;

use crate::environment::{WorkerInfo, pod};
use crate::error::HookCommandError;
use crate::hook::HookCall;
use crate::log::StepLog;
use crate::settings::HookFileSettings;
use crate::signals::PendingSignals;

/// Minimum of the setting `lost-timeout`: agents send heartbeats every 5 seconds.
const MIN_LOST_TIMEOUT: Duration = Duration::from_secs(20);

/// Carries out the request.
pub fn run(
    loaded: &LoadedSettings<HookFileSettings>,
    request: &HookRequest,
    seen: &WorkerInfo,
    log: &StepLog,
) -> Result<CliExit, HookCommandError> {
    let settings = &loaded.settings;
    let call = HookCall::new(loaded, request, seen)?;
    let identity = identity()?;
    let kubernetes = library_settings(settings, log);
    let cluster = ClusterClient::connect(kubernetes.namespace.as_deref()).map_err(Box::new)?;
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let registries = settings.host().registries(|name| std::env::var(name).ok())?;
    let credentials = settings.host().credentials()?;
    let backend = KubernetesBackend::new(KubernetesParts {
        context: call.context(log),
        settings: &kubernetes,
        build_cache: settings.build.cache,
        cluster: &cluster,
        identity: &identity,
        registries: &registries,
        credentials: &credentials,
        signals: &|| Ok(Box::new(PendingSignals::new()?) as Box<dyn StepSignals>),
        streams: [stdout.as_fd(), stderr.as_fd()],
    });
    call.run(&backend, request, log)
}

/// Returns the identity of the runner's pod without contacting the cluster.
pub fn identity() -> Result<PodIdentity, HookCommandError> {
    Ok(PodIdentity {
        name: pod::name()?,
        claim: pod::variable(pod::CLAIM),
        program: program_path()?,
    })
}

/// Returns the settings of the Kubernetes backend; variables of GitHub's hook are used where the settings are
/// unset.
pub fn library_settings(
    settings: &HookFileSettings,
    log: &dyn container_hook_job::HookLog,
) -> KubernetesSettings {
    let of_file = settings.kubernetes.clone();
    KubernetesSettings {
        namespace: of_file.namespace.or_else(|| pod::variable(pod::NAMESPACE)),
        prepare_timeout: of_file.prepare_timeout.or_else(|| pod::prepare_timeout(log).map(Age)),
        lost_timeout: Age(of_file.lost_timeout.0.max(MIN_LOST_TIMEOUT)),
        runner_image: of_file.runner_image.or_else(|| pod::variable(pod::IMAGE)),
        ..of_file
    }
}
