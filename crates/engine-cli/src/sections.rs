//! Sections of settings files shared by the programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks::hooks::Consumer;
use oci_hooks_engine::bundle::HookOptions;
use oci_hooks_files::quantity::{Age, ByteSize};
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::{userns, version};
use oci_hooks_image::PullPolicy;
use semver::Version;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::host::HostError;

/// First kernel version with idmapped layers in overlayfs, and the consequence of an older one.
pub const IDMAPPED_OVERLAY: (Version, &str) = (
    version::IDMAPPED_LAYERS,
    "before Linux 5.19, containers are in the host's user namespace: root in a container is root on the host",
);

/// The OCI runtime, `[runtime]` in settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RuntimeSection {
    pub order: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    pub systemd_cgroup: bool,
}

impl Default for RuntimeSection {
    fn default() -> Self {
        let order = oci_hooks_engine::runtime::CONFINING.map(str::to_owned).to_vec();
        RuntimeSection { order, path: None, systemd_cgroup: false }
    }
}

/// The image store and its retention, `[store]` in settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StoreSection {
    pub root: PathBuf,
    pub run: PathBuf,
    pub pull: PullSetting,
    pub logins: Vec<PathBuf>,
    pub max_layer_size: ByteSize,
    pub max_layer_files: u64,
    pub min_pull_speed: ByteSize,
    pub max_pull_time: Age,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_age: Option<Age>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_size: Option<ByteSize>,
    /// Not a setting: directories and privilege of this process.
    #[serde(skip)]
    pub place: StoreView,
}

impl StoreSection {
    /// Returns the directory of container and network state that is cleared on reboot.
    pub fn container_run(&self) -> &Path {
        self.place.run.as_ref().unwrap_or(&self.run)
    }

    /// Returns the directory of root file systems and volumes.
    pub fn container_disk(&self) -> &Path {
        self.place.disk.as_ref().unwrap_or(&self.root)
    }
}

impl Default for StoreSection {
    fn default() -> Self {
        StoreSection {
            root: "/var/lib/oci-hooks".into(),
            run: "/run/oci-hooks".into(),
            pull: PullSetting::default(),
            logins: Vec::new(),
            max_layer_size: ByteSize(64 << 30),
            max_layer_files: 4_000_000,
            min_pull_speed: ByteSize(10 << 10),
            max_pull_time: Age(Duration::from_secs(6 * 3600)),
            keep_age: None,
            keep_size: None,
            place: StoreView::default(),
        }
    }
}

/// Directories of a program's containers, and the program's privilege.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreView {
    pub privilege: Privilege,
    /// If set, limits of containers are enforced; a rootless user needs a delegated cgroup.
    pub has_cgroup: bool,
    /// Directory of records that are cleared on reboot, if not the store's `run`.
    pub run: Option<PathBuf>,
    /// Directory of root file systems and volumes, if not the store's `root`.
    pub disk: Option<PathBuf>,
}

impl Default for StoreView {
    /// Returns the view of root on the host.
    fn default() -> Self {
        StoreView { privilege: Privilege::Root, has_cgroup: true, run: None, disk: None }
    }
}

impl StoreView {
    /// Returns the privilege of this process, with the directories of the store's settings.
    pub fn of_process() -> Self {
        // If the privilege cannot be read, the least is assumed.
        let privilege = Privilege::of_process().unwrap_or(Privilege::Single);
        StoreView { privilege, has_cgroup: privilege == Privilege::Root, run: None, disk: None }
    }
}

/// Pull policy, `pull` in settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PullSetting {
    /// Ask the registry for a newer image each time
    Always,
    /// Ask the registry only if the image is not in the store
    Missing,
    /// Like `always`, but use the stored image if the registry does not answer
    #[default]
    Newer,
    /// Do not ask the registry: only use images in the store
    Never,
}

impl From<PullSetting> for PullPolicy {
    fn from(pull: PullSetting) -> Self {
        match pull {
            PullSetting::Always => PullPolicy::Always,
            PullSetting::Missing => PullPolicy::Missing,
            PullSetting::Newer => PullPolicy::Newer,
            PullSetting::Never => PullPolicy::Never,
        }
    }
}

/// The hooks.d hooks of containers, `[hooks]` in settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct HooksSection {
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirs: Option<Vec<PathBuf>>,
    #[serde(rename = "as")]
    pub consumer: String,
    pub strict: bool,
    pub skip_bad_files: bool,
    pub precreate: bool,
}

impl Default for HooksSection {
    fn default() -> Self {
        HooksSection {
            enabled: true,
            dirs: None,
            consumer: oci_hooks::hooks::consumer::PODMAN.name.to_owned(),
            strict: true,
            skip_bad_files: false,
            precreate: true,
        }
    }
}

impl HooksSection {
    /// Returns the options for loading hooks; none if hooks are disabled.
    pub fn options(&self) -> Result<Option<HookOptions>, HostError> {
        if !self.enabled {
            return Ok(None);
        }
        let consumer = Consumer::from_name(&self.consumer).ok_or_else(|| HostError::Consumer {
            name: self.consumer.clone(),
            known: Consumer::ALL.map(|consumer| consumer.name).join(", "),
        })?;
        Ok(Some(HookOptions {
            dirs: self.dirs.clone(),
            consumer,
            strict: self.strict,
            skip_bad_files: self.skip_bad_files,
            precreate: self.precreate,
        }))
    }
}

/// User namespace of root's containers, `user-namespace` in settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserNamespace {
    /// As `Private` if the kernel supports it, else as `Host`.
    #[default]
    Auto,
    Private,
    Host,
}

impl UserNamespace {
    /// Returns whether root's containers have their own user namespaces on this machine.
    pub fn is_private(self) -> bool {
        match self {
            UserNamespace::Auto => version::supports_idmapped_layers() && userns::are_allowed(),
            UserNamespace::Private => true,
            UserNamespace::Host => false,
        }
    }
}

/// Reads registries by their hosts, `[registry.HOST]` in settings.
///
/// # Errors
///
/// Fails if a key is not a host with an optional port, or if a mirror is not a host with an optional port and path:
/// neither is a URL.
pub fn registry_hosts<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, RegistrySection>, D::Error> {
    let registries = BTreeMap::<String, RegistrySection>::deserialize(from)?;
    // Messages with the name of the section would be hidden, because they quote the file.
    if registries.keys().any(|host| host.is_empty() || host.contains(['/', ' '])) {
        return Err(D::Error::custom(
            "invalid host: expected HOST[:PORT] without a scheme or path, such as \"example.com:5000\"",
        ));
    }
    let is_invalid = |mirror: &String| {
        mirror.is_empty()
            || mirror.starts_with('/')
            || mirror.contains("://")
            || mirror.contains(' ')
    };
    if registries.values().flat_map(|section| &section.mirrors).any(is_invalid) {
        return Err(D::Error::custom(
            "invalid mirror: expected HOST[:PORT][/PATH] without a scheme, such as \"example.com:5000/path\"",
        ));
    }
    Ok(registries)
}

/// Connection options of a registry, `[registry.HOST]` in settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RegistrySection {
    pub insecure: bool,
    pub mirrors: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Settings {
        #[serde(deserialize_with = "registry_hosts")]
        registry: BTreeMap<String, RegistrySection>,
    }

    #[test]
    fn mirrors_may_have_a_port_and_a_path_but_no_scheme() {
        let parse = |mirror: &str| {
            let text = format!("[registry.\"docker.io\"]\nmirrors = [{mirror:?}]\n");
            toml::from_str::<Settings>(&text).map(|settings| settings.registry)
        };
        for mirror in ["m.test", "m.test:5000", "m.test/hub", "[::1]:5000/a/b"] {
            assert_eq!(parse(mirror).unwrap()["docker.io"].mirrors, [mirror]);
        }
        for mirror in ["", "/hub", "http://m.test", "https://m.test/hub", "m.test hub"] {
            assert!(parse(mirror).is_err(), "{mirror}");
        }
    }
}
