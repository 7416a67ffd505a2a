//! The settings: TOML files that only root and the user who runs this may write, and a default for all in
//! them.

mod backend;

use std::collections::BTreeMap;
use std::env;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::{Ipv4Net, Ipv6Net};
use oci_hooks::container_hook::engine::NewPrivileges;
use oci_hooks::container_hook::policy::{Policy, Preset};
use oci_hooks::container_hook::template::TemplateSettings;
use oci_hooks::network::{Interface, Subnet};
use oci_hooks::program::checks::registries::{self, Missing};
use oci_hooks::program::host::Host;
use oci_hooks::program::paths::Paths;
use oci_hooks::program::sections::{Hooks, Place, Registry, Runtime, Store, UserNamespace};
use oci_hooks::program::settings_file::{FileSettings, Loaded, SettingsError};
use oci_hooks::sys::quantity::Size;
use oci_hooks::sys::text;
use oci_hooks::sys::uplink::UplinkChoice;
use serde::{Deserialize, Serialize};

pub use backend::{Back, Backend, Kind, Kubernetes, Work};

/// The file of settings that is read if it exists; a user's own supplies what it does not say.
pub const FILE: &str = "/etc/oci-hooks/container-hook.toml";
/// Names another file of settings, which must exist.
pub const FILE_VARIABLE: &str = "OCI_HOOKS_CONTAINER_HOOK_CONFIG";

/// The settings, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    pub backend: Backend,
    pub kubernetes: Kubernetes,
    pub runtime: Runtime,
    pub store: Store,
    pub network: Network,
    pub hooks: Hooks,
    pub limits: Limits,
    pub security: Security,
    pub mounts: Mounts,
    pub log: Log,
    pub audit: Audit,
    pub build: Build,
    pub template: Template,
    pub policy: Policy,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub registry: BTreeMap<String, Registry>,
}

/// `[network]`: the networks of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Network {
    #[serde(with = "text")]
    pub pool: Subnet<Ipv4Net>,
    #[serde(with = "text")]
    pub pool6: Subnet<Ipv6Net>,
    pub dns: Vec<IpAddr>,
    pub host_access: bool,
    pub uplinks: Vec<Interface>,
    #[serde(with = "text")]
    pub uplink: UplinkChoice,
    pub names_from_runner_log: bool,
}

impl Default for Network {
    fn default() -> Self {
        Network {
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

/// Limits of containers that ask for none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Size>,
    /// True if a limit that cannot be enforced is an error.
    pub enforce: bool,
}

/// `[security]`: the privileges of containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Security {
    pub allow_new_privileges: AllowNewPrivileges,
    pub restricted: bool,
    pub user_namespace: UserNamespace,
}

/// Allows programs like `sudo` in containers to gain privileges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub enum AllowNewPrivileges {
    /// In those with a user namespace of their own.
    #[default]
    Auto,
    Always,
    Never,
}

/// [`AllowNewPrivileges`] as it is written: a boolean or a word.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected true, false or \"auto\"")]
enum Written {
    Is(bool),
    Name(String),
}

impl From<AllowNewPrivileges> for Written {
    fn from(allow: AllowNewPrivileges) -> Self {
        match allow {
            AllowNewPrivileges::Auto => Written::Name("auto".to_owned()),
            AllowNewPrivileges::Always => Written::Is(true),
            AllowNewPrivileges::Never => Written::Is(false),
        }
    }
}

impl TryFrom<Written> for AllowNewPrivileges {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        match written {
            Written::Is(true) => Ok(AllowNewPrivileges::Always),
            Written::Is(false) => Ok(AllowNewPrivileges::Never),
            Written::Name(name) if name == "auto" => Ok(AllowNewPrivileges::Auto),
            Written::Name(_) => Err("expected true, false or \"auto\""),
        }
    }
}

impl From<AllowNewPrivileges> for NewPrivileges {
    fn from(allow: AllowNewPrivileges) -> Self {
        match allow {
            AllowNewPrivileges::Auto => NewPrivileges::OfOwnUsers,
            AllowNewPrivileges::Always => NewPrivileges::Allowed,
            AllowNewPrivileges::Never => NewPrivileges::Denied,
        }
    }
}

/// The runner's directories in containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mounts {
    pub ownership: Ownership,
}

/// The owner of files that containers create in the runner's directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ownership {
    #[default]
    Runner,
    Keep,
}

/// Logs of services, `[log]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Log {
    pub size: Size,
}

impl Default for Log {
    fn default() -> Self {
        Log { size: Size(16 << 20) }
    }
}

/// `[audit]`: the audit log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Audit {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
}

/// `[build]`: Dockerfile actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Build {
    pub buildah: PathBuf,
    pub options: Vec<String>,
}

impl Default for Build {
    fn default() -> Self {
        Build { buildah: "buildah".into(), options: Vec::new() }
    }
}

/// The pod template, and where what it names is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Template {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    pub config_maps: PathBuf,
    pub secrets: PathBuf,
    pub seccomp_profiles: PathBuf,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub runtime_classes: BTreeMap<String, PathBuf>,
}

impl Default for Template {
    fn default() -> Self {
        let TemplateSettings { file, config_maps, secrets, seccomp_profiles, runtime_classes } =
            TemplateSettings::default();
        Template { file, config_maps, secrets, seccomp_profiles, runtime_classes }
    }
}

impl FileSettings for Settings {
    const TEMPLATE: &'static str = include_str!("../../../docs/container-hook.toml");

    fn load(named: Option<&Path>) -> Result<Loaded<Self>, SettingsError> {
        let variable = || env::var_os(FILE_VARIABLE).map(PathBuf::from);
        let named = named.map(Path::to_owned).or_else(variable);
        let paths = Paths::of_process();
        let usual = paths.settings(Path::new(FILE));
        let mut loaded: Loaded<Self> = Loaded::read(named.as_deref(), &usual)?;
        paths.place(&mut loaded.settings.store, |key| loaded.lines.contains_key(key));
        loaded.settings.store.place = Place::of_process();
        Ok(loaded)
    }

    fn origin(&self, key: &str) -> Option<String> {
        let is_of_preset = key.starts_with("policy.") && !key.starts_with("policy.max.");
        let is_docker = self.policy.preset == Preset::Docker;
        (is_of_preset && is_docker).then(|| "preset \"docker\"".to_owned())
    }

    fn missing(&self) -> Vec<String> {
        registries::missing(&self.registry).iter().map(Missing::line).collect()
    }
}

impl Settings {
    /// Returns these settings with another store.
    pub fn with_store(&self, store: &Store) -> Self {
        Settings { store: store.clone(), ..self.clone() }
    }

    /// Returns the settings that concern this machine.
    pub fn host(&self) -> Host<'_> {
        Host {
            program: env!("CARGO_BIN_NAME"),
            runtime: &self.runtime,
            store: &self.store,
            registry: &self.registry,
        }
    }
}

#[cfg(test)]
mod tests {
    use oci_hooks::program::testing::settings::{check_positions, check_secrecy};

    use super::*;

    const TEMPLATE: &str = Settings::TEMPLATE;

    #[test]
    fn mistakes_name_line_and_column_and_quote_nothing() {
        check_positions::<Settings>();
        check_secrecy::<Settings>();
    }

    /// The template with what is commented out put into force.
    fn uncommented() -> String {
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
    fn the_template_changes_nothing_and_says_all_defaults() {
        let defaults = Settings::default();
        assert_eq!(toml::from_str::<Settings>(TEMPLATE).unwrap(), defaults);
        assert_eq!(toml::from_str::<Settings>(&uncommented()).unwrap(), defaults);
        for line in defaults.to_toml().lines().filter(|line| !line.is_empty()) {
            assert!(
                uncommented().contains(&format!("\n{line}\n")),
                "{line} is not in the template"
            );
        }
    }

    #[test]
    fn keys_without_a_default_are_in_the_template() {
        let settings: Settings = toml::from_str(ALL).unwrap();
        for line in settings.to_toml().lines().filter(|line| line.contains(" = ")) {
            let (key, _) = line.split_once(" = ").unwrap();
            let is_there = |start: &str| TEMPLATE.contains(&format!("\n{start}{key} = "));
            assert!(is_there("#") || is_there("# Example: "), "{key} is not in the template");
        }
    }

    /// A value for each key that has no default.
    const ALL: &str = r#"
[backend]
kind = "kubernetes"
[kubernetes]
namespace = "jobs"
prepare-timeout = "20m"
deadline = "6h"
runner-image = "registry.example/runner"
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
    fn what_is_printed_can_be_read_again() {
        let settings: Settings = toml::from_str(ALL).unwrap();
        assert_eq!(toml::from_str::<Settings>(&settings.to_toml()).unwrap(), settings);
    }
}
