//! Network and options of an instance's container.

use std::collections::BTreeMap;
use std::path::PathBuf;

use oci_hooks_engine::bundle::{
    BundleOptions, ContainerInit, HostEntry, IdMapping, MountRequest, MountSource, NamespaceSource,
    ResolverOptions, TmpfsMount,
};
use oci_hooks_engine::network::{
    EndpointRequest, NamespaceOwner, Network, NetworkEndpoint, NetworkError, NetworkOptions,
    NetworkRequest,
};
use oci_hooks_host::userns::PrivateIds;
use oci_hooks_image::Image;

use super::InstanceCreation;
use crate::boot::{GuestIds, TMPFS};
use crate::error::ProviderError;
use crate::found::ANNOTATION;
use crate::record::InstanceRecord;

/// Size limit of the tmpfs of an instance, for credentials and scripts.
const TMPFS_BYTES: u64 = 64 << 20;

/// Network of an instance, with its user namespace.
pub struct ConnectedNetwork {
    pub endpoint: NetworkEndpoint,
    /// File that pins the user namespace of the instance, if it has its own.
    pub user_namespace: Option<PathBuf>,
    private_ids: PrivateIds,
    /// Warning about the uplink, for the log.
    pub warning: Option<String>,
}

impl InstanceCreation<'_> {
    /// Creates the network of the instance, which also reserves its private ids, and attaches the instance.
    pub fn connect(&self) -> Result<ConnectedNetwork, NetworkError> {
        let options = NetworkOptions {
            host_access: self.plan.host_access,
            ..self.provider.access.network.clone()
        };
        let has_users = self.provider.settings.has_user_namespaces();
        let user_namespace = has_users.then_some(NamespaceOwner::FirstId);
        let id = self.record.network.clone();
        let network = Network::create(&options, &NetworkRequest { id, user_namespace })?;
        let request = EndpointRequest { name: "instance".to_owned(), ports: Vec::new() };
        Ok(ConnectedNetwork {
            endpoint: network.attach(&request)?,
            user_namespace: network.user_namespace(),
            private_ids: network.private_ids(),
            warning: network.warning(),
        })
    }

    /// Returns the options of the instance's container.
    pub fn options(
        &self,
        image: &Image,
        network: &ConnectedNetwork,
        user: GuestIds,
    ) -> Result<BundleOptions, ProviderError> {
        let ConnectedNetwork { endpoint, user_namespace, private_ids, .. } = network;
        let mut options = self.plan.options.clone();
        options.user_namespace.clone_from(user_namespace);
        options.private_ids = *private_ids;
        for mapping in options.mounts.iter_mut().filter_map(|mount| mount.id_mapping.as_mut()) {
            if let IdMapping::User { user: guest, .. } = mapping {
                *guest = Some((user.uid, user.gid));
            }
        }
        let program = self.provider.access.engine.init_program()?;
        options.init = Some(ContainerInit { program, args: Vec::new(), idle_only: true });
        // All other processes of the instance set their user explicitly.
        options.user = Some("0:0".to_owned());
        options.cwd = Some("/".into());
        let memory = ["exec".to_owned()];
        options.mounts.push(MountRequest {
            target: TMPFS.into(),
            source: MountSource::Tmpfs(TmpfsMount {
                size_bytes: Some(TMPFS_BYTES),
                mode: Some(0o711),
                options: memory.into(),
            }),
            subpath: None,
            read_only: false,
            id_mapping: None,
        });
        options.namespaces.network = NamespaceSource::Path(endpoint.netns.clone());
        let (servers, fallback) = (self.plan.dns.clone(), endpoint.resolver);
        options.dns = Some(ResolverOptions { servers, fallback, ..ResolverOptions::default() });
        let names: Vec<_> = options.hostname.iter().cloned().collect();
        let entry = |address: &_| HostEntry { address: *address, names: names.clone() };
        options.hosts = Some(endpoint.addresses.iter().map(entry).collect());
        options.annotations.extend(annotations(&self.record, image));
        options.hooks = self.provider.settings.hooks.clone();
        Ok(options)
    }
}

/// Returns the annotations, which hooks match, and from which records are rebuilt.
fn annotations(record: &InstanceRecord, image: &Image) -> BTreeMap<String, String> {
    let own = [
        ("controller", &record.controller),
        ("pool", &record.pool),
        ("instance", &record.name),
        ("flavor", &record.flavor),
        ("image", &record.image),
        ("arch", &record.arch),
    ];
    let own = own.map(|(key, value)| (format!("{ANNOTATION}{key}"), value.clone()));
    let name = ("org.opencontainers.image.ref.name".to_owned(), image.reference.to_string());
    own.into_iter().chain([name]).collect()
}
