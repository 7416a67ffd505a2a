//! Sections of files of settings that the programs have in common.

use std::path::{Path, PathBuf};
use std::time::Duration;

use semver::Version;
use serde::{Deserialize, Serialize};

use super::host::HostError;
use crate::bundle::HookOptions;
use crate::hooks::Consumer;
use crate::image::PullPolicy;
use crate::sys::privilege::Privilege;
use crate::sys::quantity::{Age, Size};
use crate::sys::{userns, version};

/// From here on overlayfs can be idmapped itself.
pub const IDMAPPED_OVERLAY: (Version, &str) = (
    Version::new(5, 19, 0),
    "containers are in the host's user namespace before Linux 5.19: root in one is root",
);

/// The OCI runtime, `[runtime]` in settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Runtime {
    pub order: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    pub systemd_cgroup: bool,
}

impl Default for Runtime {
    fn default() -> Self {
        let order = crate::runtime::CONFINING.map(str::to_owned).to_vec();
        Runtime { order, path: None, systemd_cgroup: false }
    }
}

/// Where images are, and how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Store {
    pub root: PathBuf,
    pub run: PathBuf,
    pub pull: Pull,
    pub logins: Vec<PathBuf>,
    pub max_layer_size: Size,
    pub max_layer_files: u64,
    pub min_pull_speed: Size,
    pub max_pull_time: Age,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_age: Option<Age>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_size: Option<Size>,
    /// Not a setting: where this process is.
    #[serde(skip)]
    pub place: Place,
}

impl Store {
    /// Returns where containers and networks keep what does not outlive a boot.
    pub fn container_run(&self) -> &Path {
        self.place.run.as_ref().unwrap_or(&self.run)
    }

    /// Returns where root file systems and volumes of containers are.
    pub fn container_disk(&self) -> &Path {
        self.place.disk.as_ref().unwrap_or(&self.root)
    }
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
            min_pull_speed: Size(10 << 10),
            max_pull_time: Age(Duration::from_secs(6 * 3600)),
            keep_age: None,
            keep_size: None,
            place: Place::default(),
        }
    }
}

/// Where a program's containers are, and what the program may do there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub privilege: Privilege,
    /// Whether limits of containers hold: an ordinary user needs a delegated cgroup.
    pub has_cgroup: bool,
    /// The directory for records that do not outlive a boot, if not that of the store.
    pub run: Option<PathBuf>,
    /// The directory of root file systems and volumes, if not that of the store.
    pub disk: Option<PathBuf>,
}

impl Default for Place {
    /// Returns the place of root of the host.
    fn default() -> Self {
        Place { privilege: Privilege::Root, has_cgroup: true, run: None, disk: None }
    }
}

impl Place {
    /// Returns the place where this process was started.
    pub fn of_process() -> Self {
        // If it cannot be read, the process has the least.
        let privilege = Privilege::of_process().unwrap_or(Privilege::Single);
        Place { privilege, has_cgroup: privilege == Privilege::Root, run: None, disk: None }
    }
}

/// When a registry is asked for an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pull {
    /// Check the registry for a newer image each time
    Always,
    /// Only if the image is not in the store
    Missing,
    /// As always, but use the stored image if the registry does not answer
    #[default]
    Newer,
    /// Never: import or pull images by hand
    Never,
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

/// Which hooks.d hooks containers get.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Hooks {
    pub enabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirs: Option<Vec<PathBuf>>,
    #[serde(rename = "as")]
    pub consumer: String,
    pub strict: bool,
    pub skip_bad_files: bool,
    pub precreate: bool,
}

impl Default for Hooks {
    fn default() -> Self {
        Hooks {
            enabled: true,
            dirs: None,
            consumer: crate::hooks::consumer::PODMAN.name.to_owned(),
            strict: true,
            skip_bad_files: false,
            precreate: true,
        }
    }
}

impl Hooks {
    /// Returns what hooks are looked for by; none if there are to be none.
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

/// Which user namespace containers of root are in, `user-namespace` in settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UserNamespace {
    /// One of their own, if the kernel has what that takes.
    #[default]
    Auto,
    Private,
    Host,
}

impl UserNamespace {
    /// Returns whether containers of root have one of their own on this machine.
    pub fn is_private(self) -> bool {
        match self {
            UserNamespace::Auto => supports_idmapped_layers() && userns::are_allowed(),
            UserNamespace::Private => true,
            UserNamespace::Host => false,
        }
    }
}

/// Returns whether overlayfs supports idmapped layers, as on Linux 5.19 or later.
fn supports_idmapped_layers() -> bool {
    let uname = rustix::system::uname();
    let version = version::parse(&uname.release().to_string_lossy());
    version.is_some_and(|version| version >= IDMAPPED_OVERLAY.0)
}

/// How a registry is reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Registry {
    pub insecure: bool,
    pub mirrors: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
}
