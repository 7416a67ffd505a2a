//! Converts the settings to the library's types.

use std::path::Path;

use container_hook::{EngineSettings, JobRootFs};
use container_hook_job::policy::Policy;
use oci_hooks_engine::network::NetworkOptions;
use oci_hooks_engine_cli::host::HostError;
use oci_hooks_engine_cli::sections::UserNamespace;
use oci_hooks_host::privilege::Privilege;

use crate::environment;
use crate::settings::{FileOwnership, HookFileSettings};

/// Returns the options of job networks.
pub fn network(settings: &HookFileSettings) -> NetworkOptions {
    let mut options = NetworkOptions::new(settings.host().run());
    options.privilege = settings.store.place.privilege;
    options.pool = settings.network.pool;
    options.pool6 = settings.network.pool6;
    options.host_access = settings.network.host_access;
    options.uplinks.clone_from(&settings.network.uplinks);
    options.uplink.clone_from(&settings.network.uplink);
    options
}

/// Returns the settings of the hook; denials name `file` as the place to change the policy.
pub fn hook_settings(settings: &HookFileSettings, file: &Path) -> container_hook_job::HookSettings {
    let file = Some(file.to_owned());
    container_hook_job::HookSettings {
        policy: Policy { file, ..settings.policy.clone() },
        template: settings.template.clone(),
    }
}

/// Fails if a setting needs root of the host and this process is not root.
pub fn check(settings: &HookFileSettings) -> Result<(), HostError> {
    let (limits, privilege) = (&settings.limits, settings.store.place.privilege);
    let loop_device = "only root can limit disk space, by mounting a file system that is in a file";
    let needs_root = [
        (
            "security.user-namespace",
            settings.security.user_namespace == UserNamespace::Private
                && !privilege.has_idmapped_mounts(),
            "only root can give a container its own range of ids: all containers of this user share \
             the user namespace of their job",
        ),
        ("limits.disk", limits.disk.is_some() && !privilege.has_loop_devices(), loop_device),
        ("limits.volumes", limits.volumes.is_some() && !privilege.has_loop_devices(), loop_device),
        (
            "runtime.systemd-cgroup",
            settings.runtime.systemd_cgroup && privilege != Privilege::Root,
            "only root can have systemd create the cgroups of containers: those of this user are in the \
             cgroup that `Delegate=yes` gives to the runner's service",
        ),
    ];
    match needs_root.into_iter().find(|(_, is_asked, _)| *is_asked) {
        Some((key, _, reason)) => Err(HostError::OnlyRoot { key, reason }),
        None => Ok(()),
    }
}

/// Returns the settings of the engine on this host.
pub fn engine_settings(
    settings: &HookFileSettings,
    job_system: JobRootFs,
) -> Result<EngineSettings, HostError> {
    let privilege = settings.store.place.privilege;
    Ok(EngineSettings {
        pull: settings.store.pull.into(),
        hooks: settings.hooks.options()?,
        dns: settings.network.dns.clone(),
        log_bytes: settings.log.size.0,
        new_privileges: settings.security.allow_new_privileges,
        restricted: settings.security.restricted,
        user_namespace: settings.security.user_namespace.is_private()
            && privilege.has_idmapped_mounts(),
        runner_owns_files: settings.mounts.ownership == FileOwnership::Runner,
        limits: settings.limits.clone(),
        build: settings.build.clone(),
        build_env: environment::proxies(),
        job_system,
    })
}

#[test]
fn settings_that_require_root_are_rejected_for_other_users() {
    let refused = |text: &str, privilege| {
        let mut settings: HookFileSettings = toml::from_str(text).unwrap();
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
    let mut settings = HookFileSettings::default();
    settings.store.place.privilege = Privilege::Single;
    let settings = engine_settings(&settings, JobRootFs::Image).unwrap();
    assert!(!settings.user_namespace);
}

#[test]
fn defaults_match_the_library() {
    let mut settings = hook_settings(&HookFileSettings::default(), Path::new("/s.toml"));
    assert_eq!(settings.policy.file.take().unwrap(), Path::new("/s.toml"));
    assert_eq!(
        format!("{settings:?}"),
        format!("{:?}", container_hook_job::HookSettings::default())
    );
    let mut settings = engine_settings(&HookFileSettings::default(), JobRootFs::Image).unwrap();
    // The proxy variables come from the machine.
    settings.build_env.clear();
    assert_eq!(format!("{settings:?}"), format!("{:?}", EngineSettings::default()));
}
