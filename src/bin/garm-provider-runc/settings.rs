//! The settings: a TOML file that only root may write, and a default for everything in it.

use std::collections::BTreeMap;
use std::env;
use std::net::IpAddr;
use std::path::Path;

use ipnet::{Ipv4Net, Ipv6Net};
use oci_hooks::garm::{
    self, Boot, Cache, Flavor, ImageSettings, Limits, Log, MountSettings, NetworkSettings,
    ProxySettings, Users,
};
use oci_hooks::network::{Interface, NetworkOptions, Subnet};
use oci_hooks::program::checks::registries::{self, Missing};
use oci_hooks::program::host::{Host, HostError};
use oci_hooks::program::paths::Paths;
use oci_hooks::program::sections::{Hooks, Place, Registry, Runtime, Store, UserNamespace};
use oci_hooks::program::settings_file::{FileSettings, Loaded, SettingsError};
use oci_hooks::sys::fs::read_bounded;
use oci_hooks::sys::text;
use oci_hooks::sys::uplink::UplinkChoice;
use serde::{Deserialize, Serialize};

/// The file of settings that is read if it exists.
pub const FILE: &str = "/etc/oci-hooks/garm-provider-runc.toml";
/// Names another file of settings, which must exist; GARM sets it.
pub const FILE_VARIABLE: &str = "GARM_PROVIDER_CONFIG_FILE";

/// Larger than any bundle of CA certificates.
const MAX_CERTIFICATES_BYTES: u64 = 4 << 20;

/// Reads the file that is named, or the usual ones that exist: for an ordinary user that of the system, and
/// their own for what that does not say.
pub fn read(named: Option<&Path>) -> Result<Loaded<Settings>, SettingsError> {
    let paths = Paths::of_process();
    let usual = paths.settings(Path::new(FILE));
    let mut loaded = Loaded::<Settings>::read(named, &usual)?;
    let Loaded { settings, lines, .. } = &mut loaded;
    if !lines.contains_key("log.directory") {
        settings.log.directory = paths.logs.join("garm");
    }
    paths.place(&mut settings.store, |key| lines.contains_key(key));
    settings.store.place = Place::of_process();
    Ok(loaded)
}

/// The settings, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    pub runtime: Runtime,
    pub store: Store,
    pub network: Network,
    pub security: Security,
    pub hooks: Hooks,
    pub log: Log,
    pub proxy: ProxySettings,
    pub boot: Boot,
    pub limits: Limits,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, ImageSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub flavors: BTreeMap<String, Flavor>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub networks: BTreeMap<String, NetworkSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mounts: BTreeMap<String, MountSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub caches: BTreeMap<String, Cache>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub registry: BTreeMap<String, Registry>,
}

/// `[network]`: the networks of instances.
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
}

impl Default for Network {
    fn default() -> Self {
        // Other blocks than those of container-hook, so that an address tells the program.
        Network {
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
pub struct Security {
    pub user_namespace: UserNamespace,
}

impl FileSettings for Settings {
    const TEMPLATE: &'static str = include_str!("../../../docs/garm-provider-runc.toml");

    fn load(named: Option<&Path>) -> Result<Loaded<Self>, SettingsError> {
        let variable = env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty());
        read(named.or(variable.as_deref().map(Path::new)))
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

    /// Returns where networks of instances get their addresses from.
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
    pub fn users(&self) -> Users {
        let namespace = self.security.user_namespace;
        // All instances of an ordinary user are in the user's own namespaces.
        if !self.store.place.privilege.has_idmapped_mounts() || namespace.is_private() {
            Users::Own
        } else if namespace == UserNamespace::Host {
            Users::Host
        } else {
            Users::HostOnly
        }
    }

    /// Returns what the admin decides on instances.
    pub fn garm(&self) -> Result<garm::Settings, HostError> {
        let privilege = self.store.place.privilege;
        if self.security.user_namespace == UserNamespace::Private
            && !privilege.has_idmapped_mounts()
        {
            let reason = "only root can give an instance ids that are nobody else's: those of this user are in \
                          user namespaces of the user's own";
            return Err(HostError::OnlyRoot { key: "security.user-namespace", reason });
        }
        let ca_pem = match &self.boot.ca {
            Some(path) => {
                let bytes = read_bounded(path, MAX_CERTIFICATES_BYTES)?;
                String::from_utf8_lossy(&bytes).into_owned()
            }
            None => String::new(),
        };
        Ok(garm::Settings {
            privilege,
            users: self.users(),
            root: self.store.root.clone(),
            pull: self.store.pull.into(),
            host_access: self.network.host_access,
            dns: self.network.dns.clone(),
            hooks: self.hooks.options()?,
            ca_pem,
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

    /// Returns the proxy of a variable: the variable's own value, or else the settings'.
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
