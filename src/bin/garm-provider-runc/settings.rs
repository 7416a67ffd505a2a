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
use oci_hooks::program::paths::Place;
use oci_hooks::program::sections::{Hooks, Registry, Runtime, Store, UserNamespace};
use oci_hooks::program::settings_file::{FileSettings, Loaded, SettingsError};
use oci_hooks::sys::fs::read_bounded;
use oci_hooks::sys::text;
use oci_hooks::sys::uplink::UplinkChoice;
use serde::{Deserialize, Serialize};

/// The file of settings that is read if it exists.
pub(crate) const FILE: &str = "/etc/oci-hooks/garm-provider-runc.toml";
/// Names another file of settings, which must exist; GARM sets it.
pub(crate) const FILE_VARIABLE: &str = "GARM_PROVIDER_CONFIG_FILE";

/// Larger than any bundle of CA certificates.
const MAX_CERTIFICATES_BYTES: u64 = 4 << 20;

/// Reads the file that is named, or the usual ones that exist: for an ordinary user that of the system, and
/// their own for what that does not say.
pub(crate) fn read(named: Option<&Path>) -> Result<Loaded<Settings>, SettingsError> {
    let paths = Paths::of_process();
    let usual = paths.settings(Path::new(FILE));
    let mut loaded = Loaded::<Settings>::read(named, &usual)?;
    let Loaded { settings, lines, .. } = &mut loaded;
    if !lines.contains_key("log.directory") {
        settings.log.directory = paths.logs.join("garm");
    }
    paths.place(&mut settings.store, |key| lines.contains_key(key));
    settings.place = Place::of_process();
    Ok(loaded)
}

/// The settings, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    pub(crate) runtime: Runtime,
    pub(crate) store: Store,
    pub(crate) network: Network,
    pub(crate) security: Security,
    pub(crate) hooks: Hooks,
    pub(crate) log: Log,
    pub(crate) proxy: ProxySettings,
    pub(crate) boot: Boot,
    pub(crate) limits: Limits,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) images: BTreeMap<String, ImageSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) flavors: BTreeMap<String, Flavor>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) networks: BTreeMap<String, NetworkSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) mounts: BTreeMap<String, MountSettings>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) caches: BTreeMap<String, Cache>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) registry: BTreeMap<String, Registry>,
    /// No setting: what this process found out about itself.
    #[serde(skip)]
    pub(crate) place: Place,
}

/// How networks of instances are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Network {
    #[serde(with = "text")]
    pub(crate) pool: Subnet<Ipv4Net>,
    #[serde(with = "text")]
    pub(crate) pool6: Subnet<Ipv6Net>,
    pub(crate) dns: Vec<IpAddr>,
    pub(crate) host_access: bool,
    pub(crate) uplinks: Vec<Interface>,
    #[serde(with = "text")]
    pub(crate) uplink: UplinkChoice,
}

impl Default for Network {
    fn default() -> Self {
        // Beside those of container-hook, so that nobody wonders whose an address is.
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

/// What instances may do, `[security]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Security {
    pub(crate) user_namespace: UserNamespace,
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
    /// Returns what they say about this machine.
    pub(crate) fn host(&self) -> Host<'_> {
        Host {
            program: env!("CARGO_BIN_NAME"),
            runtime: &self.runtime,
            store: &self.store,
            registry: &self.registry,
            place: &self.place,
        }
    }

    /// Returns where networks of instances get their addresses from.
    pub(crate) fn network(&self) -> NetworkOptions {
        let mut options = NetworkOptions::new(self.host().run());
        options.privilege = self.place.privilege;
        options.pool = self.network.pool;
        options.pool6 = self.network.pool6;
        options.host_access = self.network.host_access;
        options.uplinks.clone_from(&self.network.uplinks);
        options.uplink.clone_from(&self.network.uplink);
        options
    }

    /// Returns whose the users of instances are.
    pub(crate) fn users(&self) -> Users {
        let namespace = self.security.user_namespace;
        // All instances of an ordinary user are in namespaces of the user's.
        if !self.place.privilege.has_idmapped_mounts() || namespace.is_private() {
            Users::Own
        } else if namespace == UserNamespace::Host {
            Users::Host
        } else {
            Users::HostOnly
        }
    }

    /// Returns what the admin decides on instances.
    pub(crate) fn garm(&self) -> Result<garm::Settings, HostError> {
        let privilege = self.place.privilege;
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
    pub(crate) fn proxy(&self, name: &str, value: Option<String>) -> Option<String> {
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
