//! What the container of an instance is given besides its image, and by its network.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::Creation;
use crate::bundle::{Dns, HostEntry, Init, Mount, MountSource, Namespace, Options, Tmpfs};
use crate::garm::boot::{Owner, TMPFS};
use crate::garm::error::ProviderError;
use crate::garm::record::InstanceRecord;
use crate::image::Image;
use crate::network::{
    Endpoint, EndpointRequest, NamespaceOwner, Network, NetworkError, NetworkOptions,
    NetworkRequest,
};
use crate::sys::userns::PrivateIds;

/// What all annotations of ours begin with.
const PREFIX: &str = "io.github.cloudbase.garm.";

/// How much an instance may hold in its directory in memory: credentials and scripts.
const TMPFS_BYTES: u64 = 64 << 20;

/// What an instance has of the host, by its network.
pub struct Connected {
    pub endpoint: Endpoint,
    /// Its pinned user namespace, if it has one.
    pub user_namespace: Option<PathBuf>,
    private_ids: PrivateIds,
    /// What people should know of the way out.
    pub warning: Option<String>,
}

impl Creation<'_> {
    /// Connects the instance to a network of its own, to which its ids belong too.
    pub fn connect(&self, id: &str) -> Result<Connected, NetworkError> {
        let options =
            NetworkOptions { host_access: self.plan.host_access, ..self.provider.network.clone() };
        let has_users = self.provider.settings.has_user_namespaces();
        let user_namespace = has_users.then_some(NamespaceOwner::FirstId);
        let network =
            Network::create(&options, &NetworkRequest { id: id.to_owned(), user_namespace })?;
        let request = EndpointRequest { name: "instance".to_owned(), ports: Vec::new() };
        Ok(Connected {
            endpoint: network.attach(&request)?,
            user_namespace: network.user_namespace(),
            private_ids: network.private_ids(),
            warning: network.warning(),
        })
    }

    /// Returns what the container of the instance is given.
    pub fn options(
        &self,
        record: &InstanceRecord,
        image: &Image,
        connected: &Connected,
        user: Owner,
    ) -> Result<Options, ProviderError> {
        let Connected { endpoint, user_namespace, private_ids, .. } = connected;
        let mut options = self.plan.options.clone();
        options.user_namespace.clone_from(user_namespace);
        options.private_ids = *private_ids;
        for mapping in options.mounts.iter_mut().filter_map(|mount| mount.id_mapping.as_mut()) {
            mapping.user = Some((user.uid, user.gid));
        }
        let program = self.provider.engine.init_program()?;
        options.init = Some(Init { program, args: Vec::new(), idle_only: true });
        // Every other process of the instance names its user.
        options.user = Some("0:0".to_owned());
        options.cwd = Some("/".into());
        let memory = ["exec".to_owned()];
        options.mounts.push(Mount {
            target: TMPFS.into(),
            source: MountSource::Tmpfs(Tmpfs {
                size_bytes: Some(TMPFS_BYTES),
                mode: Some(0o711),
                options: memory.into(),
            }),
            subpath: None,
            read_only: false,
            id_mapping: None,
        });
        options.namespaces.network = Namespace::Path(endpoint.netns.clone());
        let (servers, fallback) = (self.plan.dns.clone(), endpoint.resolver);
        options.dns = Some(Dns { servers, fallback, ..Dns::default() });
        let names: Vec<_> = options.hostname.iter().cloned().collect();
        let entry = |address: &_| HostEntry { address: *address, names: names.clone() };
        options.hosts = Some(endpoint.addresses.iter().map(entry).collect());
        options.annotations.extend(annotations(record, image));
        options.hooks = self.provider.settings.hooks.clone();
        Ok(options)
    }
}

/// Returns what hooks are matched against.
fn annotations(record: &InstanceRecord, image: &Image) -> BTreeMap<String, String> {
    let own = [
        ("controller", &record.controller),
        ("pool", &record.pool),
        ("instance", &record.name),
        ("flavor", &record.flavor),
        ("image", &record.image),
        ("arch", &record.arch),
    ];
    let own = own.map(|(key, value)| (format!("{PREFIX}{key}"), value.clone()));
    let name = ("org.opencontainers.image.ref.name".to_owned(), image.reference.to_string());
    own.into_iter().chain([name]).collect()
}
