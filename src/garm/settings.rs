//! What the admin decides on instances.
//!
//! Most of it is sections of a file of settings, as they are written there.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Component, PathBuf};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::http::Proxy;
use crate::bundle::{DEFAULT_PIDS_LIMIT, HookOptions};
use crate::image::{PullPolicy, Reference};
use crate::sys::privilege::Privilege;
use crate::sys::quantity::{Age, Size};
pub use crate::sys::quantity::{Cpus, CpusError};
use crate::sys::text;

/// What the admin decides on instances.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What this process may do.
    pub privilege: Privilege,
    /// Whose the users of instances are.
    pub users: Users,
    /// Where images, root file systems and caches are.
    pub root: PathBuf,
    /// When the registry is asked for an image that says nothing else.
    pub pull: PullPolicy,
    /// Whether instances reach services of the host, if their network says nothing else.
    pub host_access: bool,
    /// Resolvers of instances whose network has none; none for those of the host.
    pub dns: Vec<IpAddr>,
    /// hooks.d hooks; `None` for none.
    pub hooks: Option<HookOptions>,
    /// Certificates to trust besides those of the host and of GARM, PEM; what [`Boot::ca`] names.
    pub ca_pem: String,
    pub log: Log,
    /// Proxies where GARM sends none.
    pub proxy: ProxySettings,
    /// How runners are brought up.
    pub boot: Boot,
    /// Images by the names that pools use for them.
    pub images: BTreeMap<String, ImageSettings>,
    pub flavors: BTreeMap<String, Flavor>,
    /// How far extra specs can go.
    pub limits: Limits,
    /// Networks by the names that extra specs use for them.
    pub networks: BTreeMap<String, NetworkSettings>,
    /// Directories and files of the host by the names that extra specs use for them.
    pub mounts: BTreeMap<String, MountSettings>,
    /// Caches by the names that extra specs use for them.
    pub caches: BTreeMap<String, Cache>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            privilege: Privilege::Root,
            users: Users::default(),
            root: "/var/lib/oci-hooks".into(),
            pull: PullPolicy::default(),
            host_access: false,
            dns: Vec::new(),
            hooks: Some(HookOptions::default()),
            ca_pem: String::new(),
            log: Log::default(),
            proxy: ProxySettings::default(),
            boot: Boot::default(),
            images: BTreeMap::new(),
            flavors: BTreeMap::new(),
            limits: Limits::default(),
            networks: BTreeMap::new(),
            mounts: BTreeMap::new(),
            caches: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Returns whether each instance is given a user namespace. All that an ordinary user makes is in one
    /// already.
    pub fn has_user_namespaces(&self) -> bool {
        self.users == Users::Own && self.privilege.has_idmapped_mounts()
    }
}

/// Whose the users of instances are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// Their own: root of an instance is nobody on the host.
    #[default]
    Own,
    /// The host's, as its administrator says.
    Host,
    /// The host's, as its kernel gives instances no others.
    HostOnly,
}

/// Where logs of instances are, and how long they are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Log {
    #[serde(deserialize_with = "absolute")]
    pub directory: PathBuf,
    /// How much of one instance is kept; the oldest goes.
    pub size: Size,
    /// How long they are kept after their instance.
    pub keep_age: Age,
}

impl Default for Log {
    fn default() -> Self {
        Log {
            directory: "/var/log/oci-hooks/garm".into(),
            size: Size(16 << 20),
            keep_age: Age(Duration::from_secs(7 * 24 * 3600)),
        }
    }
}

/// Proxies where GARM sends none; empty if there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct ProxySettings {
    /// For `http://`.
    pub http: String,
    /// For `https://`.
    pub https: String,
    /// Hosts that are reached without, separated by commas.
    pub no_proxy: String,
}

impl From<&ProxySettings> for Proxy {
    fn from(settings: &ProxySettings) -> Self {
        Proxy {
            http_proxy: settings.http.clone(),
            https_proxy: settings.https.clone(),
            no_proxy: settings.no_proxy.clone(),
        }
    }
}

/// How runners are brought up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Boot {
    /// The user that a runner runs as, a name or a number.
    pub user: String,
    /// Whether the runner's own script may install what it needs, if it does not start without.
    pub install_dependencies: bool,
    /// How long it may take until a runner listens for jobs.
    pub timeout: Age,
    /// A file of certificates to trust besides those of the host and of GARM, PEM.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_absolute")]
    pub ca: Option<PathBuf>,
    /// Whether GARM's own script is run instead of what we know of runners.
    pub use_garm_template: bool,
}

impl Default for Boot {
    fn default() -> Self {
        Boot {
            user: "runner".to_owned(),
            install_dependencies: true,
            timeout: Age(Duration::from_secs(15 * 60)),
            ca: None,
            use_garm_template: false,
        }
    }
}

/// An image, and what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct ImageSettings {
    /// Its name in a registry.
    #[serde(with = "text")]
    pub reference: Reference,
    /// Where it has the runner; else it is looked for, and downloaded if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_absolute")]
    pub runner_dir: Option<PathBuf>,
    /// The user that the runner runs as, a name or a number, if it is another one than usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// When the registry is asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<PullPolicy>,
}

/// What instances get by the name of their flavor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Flavor {
    /// CPUs; none for all of the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Memory; none for all of the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    pub pids: NonZeroU32,
    /// What the root file system may hold; none for all there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
    /// Whether they may do everything that root of the host may.
    pub privileged: bool,
    /// Whether containers can be run in them.
    pub nesting: bool,
    /// Whether programs such as `sudo` have no effect.
    pub no_new_privileges: bool,
}

impl Default for Flavor {
    fn default() -> Self {
        let pids = u32::try_from(DEFAULT_PIDS_LIMIT).ok().and_then(NonZeroU32::new);
        Flavor {
            cpus: None,
            memory: None,
            pids: pids.expect("it is a number of processes"),
            disk: None,
            privileged: false,
            nesting: false,
            no_new_privileges: false,
        }
    }
}

/// How far extra specs can go. What is not said ends at what the flavor has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<NonZeroU32>,
    /// What the root file system may hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Size>,
}

/// A network that instances of some pools can be in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct NetworkSettings {
    /// Whether they reach services of the host.
    pub host_access: bool,
    /// Resolvers; none for the usual ones.
    pub dns: Vec<IpAddr>,
    pub pools: Pools,
}

/// A directory or file of the host that instances of some pools can have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct MountSettings {
    /// Where it is on the host.
    #[serde(deserialize_with = "absolute")]
    pub source: PathBuf,
    /// Where it is in instances.
    #[serde(deserialize_with = "absolute")]
    pub target: PathBuf,
    /// Whether nothing can be changed there.
    #[serde(default = "yes")]
    pub read_only: bool,
    #[serde(default)]
    pub pools: Pools,
    /// Whether instances of these pools have it without asking.
    #[serde(default)]
    pub always: bool,
}

/// A directory that instances of a pool share, one for each of some pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Cache {
    /// Where it is in instances.
    #[serde(deserialize_with = "absolute")]
    pub target: PathBuf,
    #[serde(default)]
    pub pools: Pools,
    /// Whether instances of these pools have it without asking.
    #[serde(default)]
    pub always: bool,
}

/// Pools by what GARM calls them; `*` is all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pools(pub Vec<String>);

impl Pools {
    /// Returns whether a pool is among them.
    pub fn contain(&self, pool_id: &str) -> bool {
        self.0.iter().any(|pool| pool == "*" || pool == pool_id)
    }
}

fn yes() -> bool {
    true
}

fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_relative() || path.components().any(|part| part == Component::ParentDir) {
        let path = path.display().to_string();
        return Err(D::Error::custom(format_args!("{path:?} is no absolute path without `..`")));
    }
    Ok(path)
}

fn some_absolute<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    absolute(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_in_parts() {
        assert_eq!(Cpus::new(0.5).unwrap().nanos(), 500_000_000);
        assert_eq!(Cpus::new(1.1).unwrap().count(), 1.1);
        assert_eq!(toml::from_str::<Flavor>("cpus = 2").unwrap().cpus, Cpus::new(2.0).ok());
        for wrong in [0.0, -1.0, 0.001, f64::NAN, f64::INFINITY, 1e9] {
            Cpus::new(wrong).unwrap_err();
        }
        let message = Cpus::new(0.0).unwrap_err().to_string();
        assert_eq!(message, "invalid CPU count 0: expected 0.01–65536, for example 2 or 0.5");
    }

    #[test]
    fn a_pool_is_named_or_all_are() {
        let pools = |names: &[&str]| Pools(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(pools(&["a", "my set/1-x"]).contain("my set/1-x"));
        assert!(pools(&["*"]).contain("anything"));
        assert!(
            !pools(&["a"]).contain("b") && !pools(&[]).contain("") && !pools(&["a"]).contain("*")
        );
    }

    #[test]
    fn mistakes_are_found_when_the_settings_are_read() {
        let image = toml::from_str::<ImageSettings>("reference = \"A B\"").unwrap_err();
        assert!(image.to_string().contains("invalid repository"), "{image}");
        for path in ["cache", "/a/../b", ""] {
            let cache = toml::from_str::<Cache>(&format!("target = \"{path}\"")).unwrap_err();
            assert!(cache.to_string().contains("is no absolute path without `..`"), "{cache}");
        }
        let flavor = toml::from_str::<Flavor>("pids = 0").unwrap_err();
        assert!(flavor.to_string().contains("nonzero"), "{flavor}");
        let flavor = toml::from_str::<Flavor>("cpu = 1").unwrap_err();
        assert!(flavor.to_string().contains("unknown field `cpu`"), "{flavor}");
    }

    #[test]
    fn what_is_mounted_is_read_only_unless_it_is_said() {
        let mount = "source = \"/srv\"\ntarget = \"/srv\"\n";
        assert!(toml::from_str::<MountSettings>(mount).unwrap().read_only);
        let mount = format!("{mount}read-only = false");
        assert!(!toml::from_str::<MountSettings>(&mount).unwrap().read_only);
    }
}
