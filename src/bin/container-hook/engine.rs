//! The library's values, from the settings.

use std::path::Path;

use oci_hooks::container_hook;
use oci_hooks::container_hook::engine::{BuildOptions, EngineSettings};
use oci_hooks::container_hook::policy::Policy;
use oci_hooks::container_hook::template::TemplateSettings;
use oci_hooks::network::NetworkOptions;
use oci_hooks::program::host::HostError;

use crate::environment;
use crate::settings::{Ownership, Settings};

/// Returns where networks of jobs get their addresses from.
pub(crate) fn network(settings: &Settings) -> NetworkOptions {
    let mut options = NetworkOptions::new(settings.host().run());
    options.privilege = settings.place.privilege;
    options.pool = settings.network.pool;
    options.pool6 = settings.network.pool6;
    options.host_access = settings.network.host_access;
    options.uplinks.clone_from(&settings.network.uplinks);
    options
}

/// Returns what jobs may ask for, by settings whose policy is changed in a file.
pub(crate) fn hook_settings(settings: &Settings, file: &Path) -> container_hook::Settings {
    let file = Some(file.to_owned());
    container_hook::Settings {
        policy: Policy { file, ..settings.policy.clone() },
        template: TemplateSettings {
            file: settings.template.file.clone(),
            config_maps: settings.template.config_maps.clone(),
            secrets: settings.template.secrets.clone(),
            seccomp_profiles: settings.template.seccomp_profiles.clone(),
            runtime_classes: settings.template.runtime_classes.clone(),
        },
    }
}

/// Returns how jobs are run on this host.
pub(crate) fn engine_settings(settings: &Settings) -> Result<EngineSettings, HostError> {
    Ok(EngineSettings {
        pull: settings.store.pull.into(),
        hooks: settings.hooks.options()?,
        dns: settings.network.dns.clone(),
        log_bytes: settings.log.size.0,
        new_privileges: settings.security.allow_new_privileges.into(),
        restricted: settings.security.restricted,
        user_namespace: settings.security.user_namespace.is_private(),
        runner_owns_files: settings.mounts.ownership == Ownership::Runner,
        memory_bytes: settings.limits.memory.map(|size| size.0),
        pids_limit: settings.limits.pids,
        open_files: settings.limits.open_files,
        disk_bytes: settings.limits.disk.map(|size| size.0),
        volumes_bytes: settings.limits.volumes.map(|size| size.0),
        build: BuildOptions {
            program: settings.build.buildah.clone(),
            options: settings.build.options.clone(),
            env: environment::proxies(),
        },
    })
}

#[test]
fn defaults_are_those_of_the_library() {
    let mut settings = hook_settings(&Settings::default(), Path::new("/s.toml"));
    assert_eq!(settings.policy.file.take().unwrap(), Path::new("/s.toml"));
    assert_eq!(format!("{settings:?}"), format!("{:?}", container_hook::Settings::default()));
    let mut settings = engine_settings(&Settings::default()).unwrap();
    // These are of the machine.
    settings.build.env.clear();
    assert_eq!(format!("{settings:?}"), format!("{:?}", EngineSettings::default()));
}
