//! A request of the runner, carried out by pods of a cluster. Nothing of the engine is used for that, no
//! directory of root's among it: runners in pods are users like others.

use std::io;
use std::os::fd::AsFd as _;

use oci_hooks::container::StepSignals;
use oci_hooks::container_hook;
use oci_hooks::container_hook::kubernetes::{
    Back, BuildSettings, Cluster, KubernetesBackend, KubernetesParts, KubernetesSettings,
    PodIdentity, Work,
};
use oci_hooks::container_hook::request::Request;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::programs::this_program;
use oci_hooks::program::settings_file::Loaded;

use crate::environment::Seen;
use crate::environment::pod;
use crate::hook::{Call, CallError};
use crate::log::Log;
use crate::settings::{self, Settings};
use crate::signals::Pending;

/// Carries the request out.
pub fn run(
    loaded: &Loaded<Settings>,
    request: &Request,
    seen: &Seen,
    log: &Log,
) -> Result<Exit, CallError> {
    let settings = &loaded.settings;
    let call = Call::new(loaded, request, seen)?;
    let identity = identity()?;
    let kubernetes = library_settings(settings, log);
    let hook = |error| CallError::Hook(Box::new(error));
    let namespace = kubernetes.namespace.as_deref();
    let cluster = Cluster::connect(namespace).map_err(|error| hook(error.into()))?;
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let registries = settings.host().registries(|name| std::env::var(name).ok())?;
    let credentials = settings.host().credentials()?;
    let backend = KubernetesBackend::new(KubernetesParts {
        context: call.context(log),
        settings: &kubernetes,
        cluster: &cluster,
        identity: &identity,
        registries: &registries,
        credentials: &credentials,
        signals: &|| Ok(Box::new(Pending::new()?) as Box<dyn StepSignals>),
        streams: [stdout.as_fd(), stderr.as_fd()],
    });
    call.run(&backend, request, log)
}

/// Returns what is known of the pod of the runner without asking for it.
pub fn identity() -> Result<PodIdentity, CallError> {
    Ok(PodIdentity {
        name: pod::name()?,
        claim: pod::variable(pod::CLAIM),
        program: this_program()?,
    })
}

/// Returns how jobs are run in a cluster: what no settings say, the variables of the reference may.
pub fn library_settings(settings: &Settings, log: &dyn container_hook::Log) -> KubernetesSettings {
    let of_file = &settings.kubernetes;
    let default = KubernetesSettings::default();
    let timeout = of_file.prepare_timeout.map(|age| age.0);
    let build = &of_file.build;
    KubernetesSettings {
        namespace: of_file.namespace.clone().or_else(|| pod::variable(pod::NAMESPACE)),
        prepare_timeout: timeout
            .or_else(|| pod::prepare_timeout(log))
            .unwrap_or(default.prepare_timeout),
        deadline: of_file.deadline.map(|age| age.0),
        work: match of_file.work {
            settings::Work::Auto => Work::Auto,
            settings::Work::Claim => Work::Claim,
            settings::Work::Copy => Work::Copy,
        },
        back: match of_file.back {
            settings::Back::Workspace => Back::Workspace,
            settings::Back::Nothing => Back::Nothing,
        },
        max_files: of_file.max_files,
        max_bytes: of_file.max_bytes.0,
        restricted: of_file.restricted,
        host_ports: of_file.host_ports,
        node_selectors: of_file.node_selectors,
        gpu_resource: of_file.gpu_resource.clone(),
        runner_image: of_file.runner_image.clone().or_else(|| pod::variable(pod::IMAGE)),
        build: BuildSettings {
            push: build.push.clone(),
            buildkit: build.buildkit.clone(),
            image: build.image.clone(),
            auth_file: build.auth_file.clone(),
            storage_driver: build.storage_driver.map(|driver| driver.name().to_owned()),
        },
    }
}
