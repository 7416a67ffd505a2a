//! The library's values, from the settings.

use std::path::PathBuf;

use oci_hooks::bundle::HookOptions;
use oci_hooks::container::{Engine, MonitorProgram};
use oci_hooks::container_hook::{self, BuildOptions};
use oci_hooks::hooks::Consumer;
use oci_hooks::image::PullPolicy;
use oci_hooks::runtime::{self, DEFAULT_PATH, FindError, Runtime};

use crate::settings::{Hooks, Ownership, Pull, Settings};

/// Why containers cannot be had with these settings.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    #[error(transparent)]
    Runtime(#[from] FindError),
    #[error("hooks.as: there is no consumer {name:?}, only {known}")]
    Consumer { name: String, known: String },
}

/// Returns the runtime of new containers.
pub(crate) fn runtime(settings: &Settings) -> Result<Runtime, FindError> {
    let names = match &settings.runtime.path {
        Some(path) => vec![path.as_os_str()],
        None => settings.runtime.order.iter().map(AsRef::as_ref).collect(),
    };
    let program = runtime::find(&names, Some(DEFAULT_PATH.as_ref()), None)?;
    let root = settings.store.run.join("runtime");
    Ok(Runtime { systemd_cgroup: settings.runtime.systemd_cgroup, ..Runtime::new(program, root) })
}

/// Returns what the admin decides on jobs.
pub(crate) fn hook_settings(settings: &Settings) -> Result<container_hook::Settings, EngineError> {
    Ok(container_hook::Settings {
        policy: settings.policy.clone(),
        pull: settings.store.pull.into(),
        hooks: settings.hooks.enabled.then(|| hooks(&settings.hooks)).transpose()?,
        dns: settings.network.dns.clone(),
        log_bytes: settings.log.size.0,
        allow_new_privileges: settings.security.allow_new_privileges,
        restricted: settings.security.restricted,
        runner_owns_files: settings.mounts.ownership == Ownership::Runner,
        memory_bytes: settings.limits.memory.map(|size| size.0),
        pids_limit: Some(settings.limits.pids),
        build: BuildOptions {
            program: settings.build.buildah.clone(),
            options: settings.build.options.clone(),
            env: Vec::new(),
        },
    })
}

fn hooks(settings: &Hooks) -> Result<HookOptions, EngineError> {
    let name = &settings.consumer;
    let consumer = Consumer::from_name(name).ok_or_else(|| EngineError::Consumer {
        name: name.clone(),
        known: Consumer::ALL.map(|consumer| consumer.name).join(", "),
    })?;
    Ok(HookOptions {
        dirs: settings.dirs.clone(),
        consumer,
        strict: settings.strict,
        skip_bad_files: settings.skip_bad_files,
        precreate: settings.precreate,
    })
}

impl From<Pull> for PullPolicy {
    fn from(pull: Pull) -> Self {
        match pull {
            Pull::Always => PullPolicy::Always,
            Pull::Missing => PullPolicy::Missing,
            Pull::Newer => PullPolicy::Newer,
            Pull::Never => PullPolicy::Never,
        }
    }
}

pub(crate) fn open(_: &Settings) -> Result<Engine, EngineError> {
    unreachable!()
}
pub(crate) fn network(_: &Settings) -> Result<oci_hooks::network::NetworkOptions, EngineError> {
    unreachable!()
}
pub(crate) fn registries(
    _: &Settings,
    _: u32,
) -> Result<oci_hooks::image::RegistryClient, EngineError> {
    unreachable!()
}
