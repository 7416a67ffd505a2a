//! The settings: a TOML file that only root may write, and a default for everything in it.

mod quantity;
mod read;
mod text;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use oci_hooks::container_hook::pod::TemplateSettings;
use oci_hooks::container_hook::policy::Policy;
use oci_hooks::network::Subnet;
use serde::{Deserialize, Serialize};

pub(crate) use quantity::{Age, Size, human};
#[cfg(test)]
pub(crate) use read::{FILE, FILE_VARIABLE};
pub(crate) use read::{Loaded, SettingsError};

/// The file of settings with every default, each explained.
pub(crate) const TEMPLATE: &str = include_str!("../../../docs/container-hook.toml");

/// The settings, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    pub(crate) runtime: Runtime,
    pub(crate) store: Store,
    pub(crate) network: Network,
    pub(crate) hooks: Hooks,
    pub(crate) limits: Limits,
    pub(crate) security: Security,
    pub(crate) mounts: Mounts,
    pub(crate) log: Log,
    pub(crate) build: Build,
    pub(crate) template: Template,
    pub(crate) policy: Policy,
    /// By host.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) registry: BTreeMap<String, Registry>,
}

/// What runs containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Runtime {
    pub(crate) order: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<PathBuf>,
    pub(crate) systemd_cgroup: bool,
}

impl Default for Runtime {
    fn default() -> Self {
        let order = oci_hooks::runtime::KNOWN.map(str::to_owned).to_vec();
        Runtime { order, path: None, systemd_cgroup: false }
    }
}

/// Where images are, and how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Store {
    pub(crate) root: PathBuf,
    pub(crate) run: PathBuf,
    pub(crate) pull: Pull,
    pub(crate) logins: Vec<PathBuf>,
    pub(crate) max_layer_size: Size,
    pub(crate) max_layer_files: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_age: Option<Age>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_size: Option<Size>,
}

impl Default for Store {
    fn default() -> Self {
        Store {
            root: "/var/lib/oci-hooks".into(),
            run: "/run/oci-hooks".into(),
            pull: Pull::default(),
            logins: Vec::new(),
            max_layer_size: Size(64 << 30),
            max_layer_files: 4_000_000,
            keep_age: None,
            keep_size: None,
        }
    }
}

/// When a registry is asked for an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pull {
    /// For each job, whether the name means another image by now
    #[default]
    Always,
    /// If the image is not there
    Missing,
    /// As always, but an image that is there will do if the registry does not answer
    Newer,
    /// Never: images are imported or pulled by hand
    Never,
}

/// How the network of a job is made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Network {
    #[serde(with = "text")]
    pub(crate) pool: Subnet<Ipv4Addr>,
    #[serde(with = "text")]
    pub(crate) pool6: Subnet<Ipv6Addr>,
    pub(crate) dns: Vec<IpAddr>,
    pub(crate) host_access: bool,
    pub(crate) names_from_runner_log: bool,
}

/// Which hooks.d hooks containers get.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Hooks {
    pub(crate) enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dirs: Option<Vec<PathBuf>>,
    #[serde(rename = "as")]
    pub(crate) consumer: String,
    pub(crate) strict: bool,
    pub(crate) skip_bad_files: bool,
    pub(crate) precreate: bool,
}

impl Default for Hooks {
    fn default() -> Self {
        Hooks {
            enabled: true,
            dirs: None,
            consumer: oci_hooks::hooks::consumer::PODMAN.name.to_owned(),
            strict: true,
            skip_bad_files: false,
            precreate: true,
        }
    }
}

/// Limits of containers that ask for none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<Size>,
    pub(crate) pids: i64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { memory: None, pids: oci_hooks::bundle::DEFAULT_PIDS_LIMIT }
    }
}

/// What containers may do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Security {
    pub(crate) allow_new_privileges: bool,
    pub(crate) restricted: bool,
}

/// The runner's directories in containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Mounts {
    pub(crate) ownership: Ownership,
}

/// Whom the files belong to that containers make in the runner's directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ownership {
    /// The runner's user.
    #[default]
    Runner,
    /// Whoever made them.
    Keep,
}

/// The output of services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Log {
    pub(crate) size: Size,
}

impl Default for Log {
    fn default() -> Self {
        Log { size: Size(16 << 20) }
    }
}

/// How Dockerfile actions are built.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Build {
    pub(crate) buildah: PathBuf,
    pub(crate) options: Vec<String>,
}

impl Default for Build {
    fn default() -> Self {
        Build { buildah: "buildah".into(), options: Vec::new() }
    }
}

/// The pod template, and where what it names is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Template {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
    pub(crate) config_maps: PathBuf,
    pub(crate) secrets: PathBuf,
    pub(crate) seccomp_profiles: PathBuf,
    /// Programs by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) runtime_classes: BTreeMap<String, PathBuf>,
}

impl Default for Template {
    fn default() -> Self {
        let TemplateSettings { file, config_maps, secrets, seccomp_profiles, runtime_classes } =
            TemplateSettings::default();
        Template { file, config_maps, secrets, seccomp_profiles, runtime_classes }
    }
}

/// How a registry is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Registry {
    pub(crate) insecure: bool,
    pub(crate) mirrors: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
}

impl Settings {
    /// Returns the settings as a file of settings has them.
    pub(crate) fn to_toml(&self) -> String {
        toml::to_string(self).expect("tables of plain values")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
[runtime]
path = "/opt/crun"
[store]
keep-age = "30d"
keep-size = "50GB"
[hooks]
dirs = ["/opt/hooks.d"]
[limits]
memory = "4GiB"
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
