//! Settings file of the program, in TOML; all keys have defaults.

use std::collections::BTreeMap;
use std::env;
use std::net::IpAddr;
use std::path::Path;

use garm_provider_runc::{
    BootSettings, CacheSettings, ExtraSpecLimits, Flavor, ImageSettings, InstanceUserNamespace,
    LogSettings, MountSettings, NetworkSettings, ProviderSettings, ProxySettings,
};
use ipnet::{Ipv4Net, Ipv6Net};
use oci_hooks_engine::network::{InterfaceName, NetworkOptions, Subnet, UplinkChoice};
use oci_hooks_engine_cli::host::{HostError, HostSections};
use oci_hooks_engine_cli::paths::DefaultPaths;
use oci_hooks_engine_cli::sections::{
    HooksSection, RegistrySection, RuntimeSection, StoreSection, StoreView, UserNamespace,
    registry_hosts,
};
use oci_hooks_engine_cli::settings_file::{FileSettings, LoadedSettings, SettingsError};
use oci_hooks_files::fs::{ReadError, read_bounded};
use oci_hooks_files::text;
use serde::{Deserialize, Serialize};

/// Default settings file, which may be missing.
pub const FILE: &str = "/etc/oci-hooks/garm-provider-runc.toml";
/// Environment variable with the path of another settings file, which must exist; GARM sets it.
pub const FILE_VARIABLE: &str = "GARM_PROVIDER_CONFIG_FILE";

/// Size limit of a CA bundle, larger than any real one.
const MAX_CERTIFICATES_BYTES: u64 = 4 << 20;

/// Reads the file `named`, or the existing default files: the system's file, and for a rootless user also their own,
/// which adds keys.
pub fn read(named: Option<&Path>) -> Result<LoadedSettings<GarmFileSettings>, SettingsError> {
    let paths = DefaultPaths::of_process();
    let usual = paths.settings(Path::new(FILE));
    let mut loaded = LoadedSettings::<GarmFileSettings>::read(named, &usual)?;
    let LoadedSettings { settings, lines, .. } = &mut loaded;
    if !lines.contains_key("log.directory") {
        settings.log.directory = paths.logs.join("garm");
    }
    paths.place(&mut settings.store, |key| lines.contains_key(key));
    settings.store.place = StoreView::of_process();
    Ok(loaded)
}

/// Content of the settings file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GarmFileSettings {
    pub runtime: RuntimeSection,
    pub store: StoreSection,
    pub network: NetworkSection,
    pub security: SecuritySection,
    pub hooks: HooksSection,
    pub log: LogSettings,
    pub proxy: ProxySettings,
    pub boot: BootSettings,
    pub limits: ExtraSpecLimits,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, ImageSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub flavors: BTreeMap<String, Flavor>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub networks: BTreeMap<String, NetworkSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mounts: BTreeMap<String, MountSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<String, CacheSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "registry_hosts")]
    pub registry: BTreeMap<String, RegistrySection>,
}

/// `[network]`: the networks of instances.
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
}

impl Default for NetworkSection {
    fn default() -> Self {
        // Different from container-hook's blocks, so that an address identifies the program.
        NetworkSection {
            pool: "10.214.0.0/15".parse().expect("it is a block"),
            pool6: "fd6f:6369:6d67::/48".parse().expect("it is a block"),
            dns: Vec::new(),
            host_access: false,
            uplinks: Vec::new(),
            uplink: UplinkChoice::Auto,
        }
    }
}

/// `[security]`: the privileges of instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct SecuritySection {
    pub user_namespace: UserNamespace,
}

impl FileSettings for GarmFileSettings {
    const TEMPLATE: &'static str = include_str!("../../../garm-provider-runc.toml");

    fn load(named: Option<&Path>) -> Result<LoadedSettings<Self>, SettingsError> {
        let variable = env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty());
        read(named.or(variable.as_deref().map(Path::new)))
    }

    fn registries(&self) -> &BTreeMap<String, RegistrySection> {
        &self.registry
    }
}

impl GarmFileSettings {
    /// Returns these settings with another store.
    pub fn with_store(&self, store: &StoreSection) -> Self {
        GarmFileSettings { store: store.clone(), ..self.clone() }
    }

    /// Returns the settings of this machine.
    pub fn host(&self) -> HostSections<'_> {
        HostSections {
            program: env!("CARGO_BIN_NAME"),
            runtime: &self.runtime,
            store: &self.store,
            registry: &self.registry,
        }
    }

    /// Returns the options of instances' networks.
    pub fn network(&self) -> NetworkOptions {
        let mut options = NetworkOptions::new(self.host().run());
        options.privilege = self.store.place.privilege;
        options.pool = self.network.pool;
        options.pool6 = self.network.pool6;
        options.host_access = self.network.host_access;
        options.uplinks.clone_from(&self.network.uplinks);
        options.uplink.clone_from(&self.network.uplink);
        options
    }

    /// Returns the user namespace of instances.
    pub fn users(&self) -> InstanceUserNamespace {
        let namespace = self.security.user_namespace;
        // Rootless instances are always in user namespaces.
        if !self.store.place.privilege.has_idmapped_mounts() || namespace.is_private() {
            InstanceUserNamespace::Own
        } else if namespace == UserNamespace::Host {
            InstanceUserNamespace::Host
        } else {
            InstanceUserNamespace::HostOnly
        }
    }

    /// Returns the settings for instances.
    pub fn provider_settings(&self) -> Result<ProviderSettings, HostError> {
        let privilege = self.store.place.privilege;
        if self.security.user_namespace == UserNamespace::Private
            && !privilege.has_idmapped_mounts()
        {
            let reason = "only root can give each instance ids of its own: instances of this user share the \
                          user's subordinate ids";
            return Err(HostError::OnlyRoot { key: "security.user-namespace", reason });
        }
        Ok(ProviderSettings {
            privilege,
            users: self.users(),
            root: self.store.root.clone(),
            pull: self.store.pull.into(),
            host_access: self.network.host_access,
            dns: self.network.dns.clone(),
            hooks: self.hooks.options()?,
            ca_pem: self.ca_pem()?,
            log: self.log.clone(),
            proxy: self.proxy.clone(),
            boot: self.boot.clone(),
            images: self.images.clone(),
            flavors: self.flavors.clone(),
            limits: self.limits.clone(),
            networks: self.networks.clone(),
            mounts: self.mounts.clone(),
            caches: self.caches.clone(),
        })
    }

    /// Returns the content of the file `ca` under `[boot]`; empty if no file is set.
    pub fn ca_pem(&self) -> Result<String, ReadError> {
        let Some(path) = &self.boot.ca else { return Ok(String::new()) };
        let bytes = read_bounded(path, MAX_CERTIFICATES_BYTES)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the `value` of the proxy variable `name`, or the setting for that variable if the value is missing or
    /// empty.
    pub fn proxy(&self, name: &str, value: Option<String>) -> Option<String> {
        value.filter(|value| !value.is_empty()).or_else(|| {
            let proxy = match name {
                "http_proxy" => &self.proxy.http,
                "https_proxy" => &self.proxy.https,
                "no_proxy" => &self.proxy.no_proxy,
                _ => return None,
            };
            Some(proxy.clone())
        })
    }
}

#[cfg(test)]
mod tests;
