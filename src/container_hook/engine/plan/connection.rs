//! How a container of a job is connected, and what it calls the others.

use super::Plan;
use crate::bundle::{self, Dns, HostEntry, Namespace};
use crate::container_hook::engine::backend::EngineBackend;
use crate::container_hook::engine::network::Connection;
use crate::container_hook::options::HostAddress;

impl Plan<'_> {
    /// Connects the container.
    pub(in crate::container_hook::engine) fn connect(
        &self,
        backend: &EngineBackend<'_>,
        connection: &Connection<'_>,
        options: &mut bundle::Options,
    ) {
        let asked = &self.container.options.network;
        let servers = if asked.dns.is_empty() { &backend.settings.dns } else { &asked.dns };
        let dns = Dns {
            loopback_works: matches!(connection, Connection::Host),
            servers: servers.clone(),
            fallback: connection.resolver(),
            search: asked.dns_search.clone(),
            options: asked.dns_options.clone(),
            ..Dns::default()
        };
        let mut gateway_address = None;
        let mut hosts = Vec::new();
        match connection {
            Connection::Job { endpoint, gateway, hosts: names } => {
                options.namespaces.network = Namespace::Path(endpoint.netns.clone());
                gateway_address = *gateway;
                hosts.extend(names.iter().cloned());
                let own = options.hostname.clone();
                for address in &endpoint.addresses {
                    let own = own
                        .iter()
                        .chain(&self.additions.second_hostname)
                        .chain(&self.container.names);
                    let names = own.cloned().collect();
                    hosts.push(HostEntry { address: *address, names });
                }
                options.dns = Some(dns);
            }
            Connection::Host => {
                options.namespaces.network = Namespace::Host;
                options.dns = Some(dns);
            }
            Connection::None => options.namespaces.network = Namespace::Private,
        }
        for host in &asked.hosts {
            let address = match host.address {
                HostAddress::Address(address) => Some(address),
                HostAddress::Gateway => gateway_address,
            };
            if let Some(address) = address {
                hosts.push(HostEntry { address, names: vec![host.name.clone()] });
            }
        }
        options.hosts = Some(hosts);
    }
}
