//! The settings: TOML files that only root and the calling user may write, with a default for every key.

mod backend;

use std::collections::BTreeMap;
use std::env;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use container_hook::{BuildSettings, LimitSettings, NewPrivileges};
use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::policy::{Policy, Preset};
use container_hook_job::template::TemplateSettings;
use ipnet::{Ipv4Net, Ipv6Net};
use oci_hooks_engine::network::{InterfaceName, Subnet, UplinkChoice};
use oci_hooks_engine_cli::host::HostSections;
use oci_hooks_engine_cli::paths::DefaultPaths;
use oci_hooks_engine_cli::sections::{
    HooksSection, RegistrySection, RuntimeSection, StoreSection, StoreView, UserNamespace,
    registry_hosts,
};
use oci_hooks_engine_cli::settings_file::{FileSettings, LoadedSettings, SettingsError};
use oci_hooks_files::quantity::ByteSize;
use oci_hooks_files::text;
use serde::{Deserialize, Serialize};

pub use backend::{BackendKind, BackendSection};

/// Path of the system settings; the user's own file supplies unset keys.
pub const FILE: &str = "/etc/oci-hooks/container-hook.toml";
/// Variable with the path of another settings file, which must exist.
pub const FILE_VARIABLE: &str = "OCI_HOOKS_CONTAINER_HOOK_CONFIG";

/// The settings, as written in the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HookFileSettings {
    pub backend: BackendSection,
    pub kubernetes: KubernetesSettings,
    pub runtime: RuntimeSection,
    pub store: StoreSection,
    pub network: NetworkSection,
    pub hooks: HooksSection,
    pub limits: LimitSettings,
    pub security: SecuritySection,
    pub mounts: MountsSection,
    pub log: LogSection,
    pub audit: AuditSection,
    pub build: BuildSettings,
    pub template: TemplateSettings,
    pub policy: Policy,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "registry_hosts")]
    pub registry: BTreeMap<String, RegistrySection>,
}

/// `[network]`: the networks of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetworkSection {
    #[serde(with = "text")]
    pub pool: Subnet<Ipv4Net>,
    #[serde(with = "text")]
    pub pool6: Subnet<Ipv6Net>,
    pub dns: Vec<IpAddr>,
    pub host_access: bool,
    pub uplinks: Vec<InterfaceName>,
    #[serde(with = "text")]
    pub uplink: UplinkChoice,
    pub names_from_runner_log: bool,
}

impl Default for NetworkSection {
    fn default() -> Self {
        NetworkSection {
            pool: Subnet::default(),
            pool6: Subnet::default(),
            dns: Vec::new(),
            host_access: false,
            uplinks: Vec::new(),
            uplink: UplinkChoice::Auto,
            names_from_runner_log: true,
        }
    }
}

/// `[security]`: the privileges of containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SecuritySection {
    pub allow_new_privileges: NewPrivileges,
    pub restricted: bool,
    pub user_namespace: UserNamespace,
}

/// `[mounts]`: the runner's directories in containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MountsSection {
    pub ownership: FileOwnership,
}

/// Owner of files that containers create in the runner's directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileOwnership {
    #[default]
    Runner,
    Keep,
}

/// `[log]`: logs of containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogSection {
    pub size: ByteSize,
}

impl Default for LogSection {
    fn default() -> Self {
        LogSection { size: ByteSize(16 << 20) }
    }
}

/// `[audit]`: the audit log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AuditSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

impl FileSettings for HookFileSettings {
    const TEMPLATE: &'static str = include_str!("../../../container-hook.toml");

    fn load(named: Option<&Path>) -> Result<LoadedSettings<Self>, SettingsError> {
        let variable = || env::var_os(FILE_VARIABLE).map(PathBuf::from);
        let named = named.map(Path::to_owned).or_else(variable);
        let paths = DefaultPaths::of_process();
        let usual = paths.settings(Path::new(FILE));
        let mut loaded: LoadedSettings<Self> = LoadedSettings::read(named.as_deref(), &usual)?;
        paths.place(&mut loaded.settings.store, |key| loaded.lines.contains_key(key));
        loaded.settings.store.place = StoreView::of_process();
        Ok(loaded)
    }

    fn origin(&self, key: &str) -> Option<String> {
        let is_of_preset = key.starts_with("policy.") && !key.starts_with("policy.max.");
        let is_docker = self.policy.preset == Preset::Docker;
        (is_of_preset && is_docker).then(|| "preset \"docker\"".to_owned())
    }

    fn registries(&self) -> &BTreeMap<String, RegistrySection> {
        &self.registry
    }
}

impl HookFileSettings {
    /// Returns these settings with another store.
    pub fn with_store(&self, store: &StoreSection) -> Self {
        HookFileSettings { store: store.clone(), ..self.clone() }
    }

    /// Returns the settings that concern this machine.
    pub fn host(&self) -> HostSections<'_> {
        HostSections {
            program: env!("CARGO_BIN_NAME"),
            runtime: &self.runtime,
            store: &self.store,
            registry: &self.registry,
        }
    }
}

#[cfg(test)]
mod tests {
    use oci_hooks_engine_cli::settings_file::parse;
    use oci_hooks_files::error::chain;
    use oci_hooks_testsupport::settings::{check_positions, check_secrecy};

    use super::*;

    const TEMPLATE: &str = HookFileSettings::TEMPLATE;

    #[test]
    fn errors_give_line_and_column_without_quoting_values() {
        let mistake = |text: &str| {
            parse::<HookFileSettings>(text.as_bytes(), Path::new("/s.toml"))
                .err()
                .map(|error| chain(&error))
        };
        check_positions(mistake);
        check_secrecy(mistake);
    }

    #[test]
    fn sizes_need_a_unit_and_memory_a_minimum() {
        for (text, expected) in [
            ("memory = 8", "expected a number and its unit"),
            ("memory = \"8\"", "expected a number and its unit"),
            (
                "memory = \"8kB\"",
                "8kB is too little memory for a container: expected at least 6MiB",
            ),
            ("disk = \"20\"", "expected a number and its unit"),
        ] {
            let text = format!("[limits]\n{text}");
            let error = toml::from_str::<HookFileSettings>(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// Returns the default file with its commented-out settings enabled.
    fn uncommented_defaults() -> String {
        let is_setting =
            |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase() || c == '[');
        let lines = TEMPLATE.lines();
        lines
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if is_setting(rest) => rest,
                _ => line,
            })
            .fold(String::new(), |text, line| text + line + "\n")
    }

    #[test]
    fn template_changes_nothing_and_lists_all_defaults() {
        let defaults = HookFileSettings::default();
        assert_eq!(toml::from_str::<HookFileSettings>(TEMPLATE).unwrap(), defaults);
        assert_eq!(toml::from_str::<HookFileSettings>(&uncommented_defaults()).unwrap(), defaults);
        for line in defaults.to_toml().lines().filter(|line| !line.is_empty()) {
            assert!(
                uncommented_defaults().contains(&format!("\n{line}\n")),
                "{line} is not in the template"
            );
        }
    }

    #[test]
    fn template_contains_keys_without_a_default() {
        let settings: HookFileSettings = toml::from_str(ALL).unwrap();
        for line in settings.to_toml().lines().filter(|line| line.contains(" = ")) {
            let (key, _) = line.split_once(" = ").unwrap();
            let is_there = |start: &str| TEMPLATE.contains(&format!("\n{start}{key} = "));
            assert!(is_there("#") || is_there("# Example: "), "{key} is not in the template");
        }
    }

    /// A value for each key without a default.
    const ALL: &str = r#"
[backend]
kind = "kubernetes"
[kubernetes]
namespace = "jobs"
prepare-timeout = "20m"
deadline = "6h"
runner-image = "registry.example/runner"
image-volumes = true
[kubernetes.build]
push = "registry.example/actions"
buildkit = "tcp://buildkit:1234"
image = "registry.example/buildah"
auth-file = "/etc/oci-hooks/push.json"
storage-driver = "vfs"
[runtime]
path = "/opt/crun"
[store]
keep-age = "30d"
keep-size = "50GB"
[hooks]
dirs = ["/opt/hooks.d"]
[limits]
memory = "4GiB"
pids = 1000
open-files = 4096
disk = "10GB"
volumes = "20GB"
enforce = true
[audit]
file = "/var/log/oci-hooks/container-hook.jsonl"
[policy]
preset = "docker"
gpus = { devices = ["/dev/nvidia*"] }
[policy.max]
when-exceeded = "deny"
memory = "16GiB"
cpus = 4.5
pids = 8192
shm-size = "2GiB"
ulimits = { nofile = 65536 }
[policy.max.job]
memory = "32GiB"
cpus = 8.0
pids = 16384
[policy.runtimes]
"octo/public-*" = "/usr/bin/runsc"
[template]
file = "/etc/t.yaml"
[template.runtime-classes]
gvisor = "/usr/bin/runsc"
[registry."localhost:5000"]
insecure = true
mirrors = ["a"]
ca = "/etc/ca.pem"
"#;

    #[test]
    fn printed_settings_can_be_parsed() {
        let settings: HookFileSettings = toml::from_str(ALL).unwrap();
        assert_eq!(toml::from_str::<HookFileSettings>(&settings.to_toml()).unwrap(), settings);
    }
}
