//! The library's values, from the settings.

use std::path::Path;

use oci_hooks::container_hook;
use oci_hooks::container_hook::engine::{BuildOptions, EngineSettings, JobSystem};
use oci_hooks::container_hook::policy::Policy;
use oci_hooks::container_hook::template::TemplateSettings;
use oci_hooks::network::NetworkOptions;
use oci_hooks::program::host::HostError;
use oci_hooks::program::sections::UserNamespace;
use oci_hooks::sys::privilege::Privilege;

use crate::environment;
use crate::settings::{Ownership, Settings};

/// Returns where networks of jobs get their addresses from.
pub fn network(settings: &Settings) -> NetworkOptions {
    let mut options = NetworkOptions::new(settings.host().run());
    options.privilege = settings.store.place.privilege;
    options.pool = settings.network.pool;
    options.pool6 = settings.network.pool6;
    options.host_access = settings.network.host_access;
    options.uplinks.clone_from(&settings.network.uplinks);
    options.uplink.clone_from(&settings.network.uplink);
    options
}

/// Returns what jobs may ask for, by settings whose policy is changed in a file.
pub fn hook_settings(settings: &Settings, file: &Path) -> container_hook::Settings {
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

/// Fails if a setting needs root of the host and this process is not root.
pub fn check(settings: &Settings) -> Result<(), HostError> {
    let (limits, privilege) = (&settings.limits, settings.store.place.privilege);
    let loop_device = "only root can mount a file system that is in a file";
    let needs_root = [
        (
            "security.user-namespace",
            settings.security.user_namespace == UserNamespace::Private
                && !privilege.has_idmapped_mounts(),
            "only root can give a container ids that are nobody else's: all containers of this user are \
             in the user namespace of their job",
        ),
        ("limits.disk", limits.disk.is_some() && !privilege.has_loop_devices(), loop_device),
        ("limits.volumes", limits.volumes.is_some() && !privilege.has_loop_devices(), loop_device),
        (
            "runtime.systemd-cgroup",
            settings.runtime.systemd_cgroup && privilege != Privilege::Root,
            "only root can have systemd make cgroups for containers: those of this user are made where \
             `Delegate=yes` of the runner's service lets them be",
        ),
    ];
    match needs_root.into_iter().find(|(_, is_asked, _)| *is_asked) {
        Some((key, _, reason)) => Err(HostError::OnlyRoot { key, reason }),
        None => Ok(()),
    }
}

/// Returns how jobs are run on this host.
pub fn engine_settings(
    settings: &Settings,
    job_system: JobSystem,
) -> Result<EngineSettings, HostError> {
    let privilege = settings.store.place.privilege;
    Ok(EngineSettings {
        pull: settings.store.pull.into(),
        hooks: settings.hooks.options()?,
        dns: settings.network.dns.clone(),
        log_bytes: settings.log.size.0,
        new_privileges: settings.security.allow_new_privileges.into(),
        restricted: settings.security.restricted,
        user_namespace: settings.security.user_namespace.is_private()
            && privilege.has_idmapped_mounts(),
        runner_owns_files: settings.mounts.ownership == Ownership::Runner,
        memory_bytes: settings.limits.memory.map(|size| size.0),
        pids_limit: settings.limits.pids,
        open_files: settings.limits.open_files,
        disk_bytes: settings.limits.disk.map(|size| size.0),
        volumes_bytes: settings.limits.volumes.map(|size| size.0),
        enforce_limits: settings.limits.enforce,
        build: BuildOptions {
            program: settings.build.buildah.clone(),
            options: settings.build.options.clone(),
            env: environment::proxies(),
        },
        job_system,
    })
}

#[test]
fn what_only_root_can_do_is_named_to_others() {
    let refused = |text: &str, privilege| {
        let mut settings: Settings = toml::from_str(text).unwrap();
        settings.store.place.privilege = privilege;
        check(&settings).map_err(|error| error.to_string())
    };
    let texts = [
        "[security]\nuser-namespace = \"private\"",
        "[limits]\ndisk = \"1GiB\"",
        "[limits]\nvolumes = \"1GiB\"",
        "[runtime]\nsystemd-cgroup = true",
    ];
    for (text, key) in texts.iter().zip([
        "security.user-namespace",
        "limits.disk",
        "limits.volumes",
        "runtime.systemd-cgroup",
    ]) {
        assert_eq!(refused(text, Privilege::Root), Ok(()));
        let error = refused(text, Privilege::Single).unwrap_err();
        assert!(error.starts_with(&format!("{key}: only root can ")), "{error}");
    }
    for text in ["", "[security]\nuser-namespace = \"host\""] {
        assert_eq!(refused(text, Privilege::Single), Ok(()));
    }
    let mut settings = Settings::default();
    settings.store.place.privilege = Privilege::Single;
    let settings = engine_settings(&settings, JobSystem::Image).unwrap();
    assert!(!settings.user_namespace);
}

#[test]
fn defaults_are_those_of_the_library() {
    let mut settings = hook_settings(&Settings::default(), Path::new("/s.toml"));
    assert_eq!(settings.policy.file.take().unwrap(), Path::new("/s.toml"));
    assert_eq!(format!("{settings:?}"), format!("{:?}", container_hook::Settings::default()));
    let mut settings = engine_settings(&Settings::default(), JobSystem::Image).unwrap();
    // These are of the machine.
    settings.build.env.clear();
    assert_eq!(format!("{settings:?}"), format!("{:?}", EngineSettings::default()));
}
