//! Settings for instances.
//!
//! Most of the types are sections of the settings file.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Component, PathBuf};
use std::time::Duration;

use oci_hooks_engine::bundle::{DEFAULT_PIDS_LIMIT, HookOptions};
use oci_hooks_files::quantity::{Age, ByteSize};
pub use oci_hooks_files::quantity::{Cpus, CpusError};
use oci_hooks_files::spelling::closest_name;
use oci_hooks_files::text;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{ImageReference, PullPolicy, ReferenceError};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::http::ProxyUrls;

/// Settings of the provider: those of the settings file that concern instances, and facts of the host.
#[derive(Clone, Debug)]
pub struct ProviderSettings {
    /// Privilege of this process.
    pub privilege: Privilege,
    /// User namespace of instances.
    pub users: InstanceUserNamespace,
    /// Directory of images, root file systems and caches.
    pub root: PathBuf,
    /// Default pull policy of images.
    pub pull: PullPolicy,
    /// If set, instances can reach services of the host. Networks that extra specs select have their own setting.
    pub host_access: bool,
    /// DNS resolvers of instances whose network has none; empty for the host's.
    pub dns: Vec<IpAddr>,
    /// Options of hooks.d hooks; `None` without hooks.
    pub hooks: Option<HookOptions>,
    /// CA certificates to trust in addition to the host's and GARM's, PEM; the content of [`BootSettings::ca`].
    pub ca_pem: String,
    pub log: LogSettings,
    /// Proxies to use if GARM sends none.
    pub proxy: ProxySettings,
    /// Settings for starting runners.
    pub boot: BootSettings,
    /// Images by their alias, which pools use.
    pub images: BTreeMap<String, ImageSettings>,
    pub flavors: BTreeMap<String, Flavor>,
    /// Maximums for extra specs.
    pub limits: ExtraSpecLimits,
    /// Networks by name, which extra specs use.
    pub networks: BTreeMap<String, NetworkSettings>,
    /// Mounts of the host's directories and files by name, which extra specs use.
    pub mounts: BTreeMap<String, MountSettings>,
    /// Caches by name, which extra specs use.
    pub caches: BTreeMap<String, CacheSettings>,
}

impl Default for ProviderSettings {
    fn default() -> Self {
        ProviderSettings {
            privilege: Privilege::Root,
            users: InstanceUserNamespace::default(),
            root: "/var/lib/oci-hooks".into(),
            pull: PullPolicy::default(),
            host_access: false,
            dns: Vec::new(),
            hooks: Some(HookOptions::default()),
            ca_pem: String::new(),
            log: LogSettings::default(),
            proxy: ProxySettings::default(),
            boot: BootSettings::default(),
            images: BTreeMap::new(),
            flavors: BTreeMap::new(),
            limits: ExtraSpecLimits::default(),
            networks: BTreeMap::new(),
            mounts: BTreeMap::new(),
            caches: BTreeMap::new(),
        }
    }
}

impl ProviderSettings {
    /// Returns whether each instance gets its own user namespace. Rootless instances are already in one.
    pub fn has_user_namespaces(&self) -> bool {
        self.users == InstanceUserNamespace::Own && self.privilege.has_idmapped_mounts()
    }
}

/// User namespace of instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InstanceUserNamespace {
    /// Each instance has its own: root of an instance is an unused id on the host.
    #[default]
    Own,
    /// The host's, by the settings.
    Host,
    /// The host's, because the kernel does not support others.
    HostOnly,
}

/// Location and retention of instance logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogSettings {
    #[serde(deserialize_with = "deserialize_absolute")]
    pub directory: PathBuf,
    /// Size limit of one log; the oldest output is removed.
    pub size: ByteSize,
    /// Retention of a log after its last write.
    pub keep_age: Age,
}

impl Default for LogSettings {
    fn default() -> Self {
        LogSettings {
            directory: "/var/log/oci-hooks/garm".into(),
            size: ByteSize(16 << 20),
            keep_age: Age(Duration::from_secs(7 * 24 * 3600)),
        }
    }
}

/// Proxies to use if GARM sends none; empty strings for none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProxySettings {
    /// For `http://`.
    #[serde(deserialize_with = "proxy_url")]
    pub http: String,
    /// For `https://`.
    #[serde(deserialize_with = "proxy_url")]
    pub https: String,
    /// Hosts reached without a proxy, separated by commas.
    pub no_proxy: String,
}

impl From<&ProxySettings> for ProxyUrls {
    fn from(settings: &ProxySettings) -> Self {
        ProxyUrls {
            http_proxy: settings.http.clone(),
            https_proxy: settings.https.clone(),
            no_proxy: settings.no_proxy.clone(),
        }
    }
}

/// Settings for starting runners.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BootSettings {
    /// User of the runner, a name or a number.
    pub user: String,
    /// If set, the runner's script `bin/installdependencies.sh` may install packages if the runner does not start.
    pub install_dependencies: bool,
    /// Timeout until a runner listens for jobs.
    pub timeout: Age,
    /// File of CA certificates to trust in addition to the host's and GARM's, PEM.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "deserialize_optional_absolute"
    )]
    pub ca: Option<PathBuf>,
    /// If set, GARM's script starts the runner instead of the provider.
    pub use_garm_template: bool,
}

impl Default for BootSettings {
    fn default() -> Self {
        BootSettings {
            user: "runner".to_owned(),
            install_dependencies: true,
            timeout: Age(Duration::from_secs(15 * 60)),
            ca: None,
            use_garm_template: false,
        }
    }
}

/// Errors of finding an image by its name.
#[derive(Debug, thiserror::Error)]
pub enum ImageNameError {
    #[error(
        "{name:?} is not an alias in the settings: did you mean {meant:?}? \
         To pull {name:?} from Docker Hub, write docker.io/library/{name}"
    )]
    Misspelt { name: String, meant: String },
    #[error("unknown image {name:?}: not an alias in the settings and not a valid reference")]
    Reference { name: String, source: ReferenceError },
}

/// Returns the settings of the image that `name` means: an alias in `images`, or else an image reference.
///
/// # Errors
///
/// Fails if the name is no reference, or is similar to an alias and names no registry or tag.
pub fn find_image(
    images: &BTreeMap<String, ImageSettings>,
    name: &str,
) -> Result<ImageSettings, ImageNameError> {
    if let Some(image) = images.get(name) {
        return Ok(image.clone());
    }
    let is_plain = !name.contains(['/', ':', '@']);
    if let Some(meant) = closest_name(name, images.keys().map(String::as_str)).filter(|_| is_plain)
    {
        return Err(ImageNameError::Misspelt { name: name.to_owned(), meant: meant.to_owned() });
    }
    let reference = name
        .parse()
        .map_err(|source| ImageNameError::Reference { name: name.to_owned(), source })?;
    Ok(ImageSettings { reference, runner_dir: None, user: None, pull: None })
}

/// An image, and its options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ImageSettings {
    #[serde(with = "text")]
    pub reference: ImageReference,
    /// Directory of the runner in the image. If none, the usual directories are searched, and a runner is downloaded if
    /// they contain none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "deserialize_optional_absolute"
    )]
    pub runner_dir: Option<PathBuf>,
    /// User of the runner, a name or a number; none for the default of [`BootSettings::user`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Pull policy; none for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<PullPolicy>,
}

/// Resources and privileges of instances, selected by the pool's flavor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Flavor {
    /// Number of CPUs; none for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Memory; none for no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_memory")]
    pub memory: Option<ByteSize>,
    #[serde(deserialize_with = "pids")]
    pub pids: NonZeroU32,
    /// Size of the root file system; none for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    /// If set, instances have all privileges of root.
    pub privileged: bool,
    /// If set, containers can be run in instances.
    pub nesting: bool,
    /// If set, set-user-ID programs such as `sudo` gain no privileges.
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

/// Maximums for extra specs. A missing maximum defaults to the flavor's value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExtraSpecLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_memory")]
    pub memory: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "some_pids")]
    pub pids: Option<NonZeroU32>,
    /// Size of the root file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
}

/// A network for instances of some pools.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetworkSettings {
    /// If set, instances can reach services of the host.
    pub host_access: bool,
    /// DNS resolvers; empty for the default ones.
    pub dns: Vec<IpAddr>,
    pub pools: PoolIds,
}

/// A directory or file of the host for instances of some pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MountSettings {
    /// Path on the host.
    #[serde(deserialize_with = "deserialize_absolute")]
    pub source: PathBuf,
    /// Path in instances.
    #[serde(deserialize_with = "mount_target")]
    pub target: PathBuf,
    #[serde(default = "default_true")]
    pub read_only: bool,
    #[serde(default)]
    pub pools: PoolIds,
    /// If set, all instances of the pools in `pools` have the mount, even if extra specs do not name it.
    #[serde(default)]
    pub always: bool,
}

/// A cache for some pools. Each pool has its own directory, which its instances share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheSettings {
    /// Path in instances.
    #[serde(deserialize_with = "mount_target")]
    pub target: PathBuf,
    #[serde(default)]
    pub pools: PoolIds,
    /// If set, all instances of the pools in `pools` have the cache, even if extra specs do not name it.
    #[serde(default)]
    pub always: bool,
}

/// Pool ids of GARM; `*` matches all pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PoolIds(pub Vec<String>);

impl PoolIds {
    /// Returns whether the list contains a pool.
    pub fn contains_pool(&self, pool_id: &str) -> bool {
        self.0.iter().any(|pool| pool == "*" || pool == pool_id)
    }
}

fn default_true() -> bool {
    true
}

fn deserialize_absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_relative() || path.components().any(|part| part == Component::ParentDir) {
        let path = path.display().to_string();
        return Err(D::Error::custom(format_args!(
            "invalid path {path:?}: expected an absolute path without `..`"
        )));
    }
    Ok(path)
}

/// Minimum memory of an instance. Runners need more, but the smallest images start in it.
pub const MIN_MEMORY_BYTES: u64 = 32 << 20;

/// Minimum number of processes and threads of an instance, which a runner needs to start.
pub const MIN_PIDS: u32 = 32;

fn some_memory<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
    let size = ByteSize::deserialize(from)?;
    if size.0 < MIN_MEMORY_BYTES {
        let least = ByteSize(MIN_MEMORY_BYTES);
        return Err(D::Error::custom(format_args!(
            "too little memory for an instance: expected at least {least}, for example 4GiB"
        )));
    }
    Ok(Some(size))
}

fn pids<'de, D: Deserializer<'de>>(from: D) -> Result<NonZeroU32, D::Error> {
    let pids = NonZeroU32::deserialize(from)?;
    if pids.get() < MIN_PIDS {
        return Err(D::Error::custom(format_args!(
            "too few processes for an instance: expected at least {MIN_PIDS}, for example 4096"
        )));
    }
    Ok(pids)
}

fn some_pids<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NonZeroU32>, D::Error> {
    pids(from).map(Some)
}

/// Reads the URL of a proxy; empty for none.
fn proxy_url<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let url = String::deserialize(from)?;
    if !url.is_empty() && !super::http::is_proxy(&url) {
        return Err(D::Error::custom(
            "invalid proxy: expected a URL with its scheme, for example \"http://proxy.example.com:3128\"",
        ));
    }
    Ok(url)
}

/// Reads a path in instances at which something is mounted.
fn mount_target<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let path = deserialize_absolute(from)?;
    let is_taken = |system: &&str| path.starts_with(system);
    // `Path` ignores repeated slashes and `.`.
    if path.parent().is_none() || ["/proc", "/sys"].iter().any(is_taken) {
        return Err(D::Error::custom(
            "nothing can be mounted over the root directory, /proc or /sys of an instance: expected \
             another directory, for example \"/datasets\"",
        ));
    }
    Ok(path)
}

fn deserialize_optional_absolute<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<PathBuf>, D::Error> {
    deserialize_absolute(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_can_be_fractions() {
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
    fn pool_list_names_pools_or_all() {
        let pools = |names: &[&str]| PoolIds(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(pools(&["a", "my set/1-x"]).contains_pool("my set/1-x"));
        assert!(pools(&["*"]).contains_pool("anything"));
        assert!(
            !pools(&["a"]).contains_pool("b")
                && !pools(&[]).contains_pool("")
                && !pools(&["a"]).contains_pool("*")
        );
    }

    #[test]
    fn errors_are_found_when_settings_are_loaded() {
        let image = toml::from_str::<ImageSettings>("reference = \"A B\"").unwrap_err();
        assert!(image.to_string().contains("invalid repository"), "{image}");
        for path in ["cache", "/a/../b", ""] {
            let cache =
                toml::from_str::<CacheSettings>(&format!("target = \"{path}\"")).unwrap_err();
            assert!(
                cache.to_string().contains("expected an absolute path without `..`"),
                "{cache}"
            );
        }
        for target in ["/", "//", "/.", "/proc", "/proc/x", "/sys/fs"] {
            let cache = format!("target = {target:?}");
            let cache = toml::from_str::<CacheSettings>(&cache).unwrap_err();
            assert!(cache.to_string().contains("nothing can be mounted over"), "{target}: {cache}");
            let mount = format!("source = \"/a\"\ntarget = {target:?}");
            toml::from_str::<MountSettings>(&mount).unwrap_err();
        }
        toml::from_str::<CacheSettings>("target = \"/processes\"").unwrap();
        for (text, expected) in [
            ("pids = 0", "nonzero"),
            ("pids = 1", "too few processes for an instance: expected at least 32"),
            ("memory = 4096", "expected a number and its unit, as \"20GB\" or \"512MiB\""),
            ("memory = \"4kB\"", "too little memory for an instance: expected at least 32MiB"),
            ("memory = \"31MiB\"", "too little memory for an instance"),
        ] {
            for error in [
                toml::from_str::<Flavor>(text).unwrap_err(),
                toml::from_str::<ExtraSpecLimits>(text).unwrap_err(),
            ] {
                assert!(error.to_string().contains(expected), "{text}: {error}");
            }
        }
        for proxy in ["proxy:3128", "proxy", "ftp://proxy"] {
            for key in ["http", "https"] {
                let text = format!("{key} = {proxy:?}");
                let error = toml::from_str::<ProxySettings>(&text).unwrap_err();
                assert!(error.to_string().contains("expected a URL with its scheme"), "{error}");
            }
        }
        toml::from_str::<ProxySettings>("http = \"\"\nhttps = \"http://p:3128\"").unwrap();
        let flavor = toml::from_str::<Flavor>("cpu = 1").unwrap_err();
        assert!(flavor.to_string().contains("unknown field `cpu`"), "{flavor}");
    }

    #[test]
    fn mounts_are_read_only_by_default() {
        let mount = "source = \"/srv\"\ntarget = \"/srv\"\n";
        assert!(toml::from_str::<MountSettings>(mount).unwrap().read_only);
        let mount = format!("{mount}read-only = false");
        assert!(!toml::from_str::<MountSettings>(&mount).unwrap().read_only);
    }
}
