//! Ports of the host for those that are to be published.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

use super::error::NetworkError;
use super::job::{NetworkOptions, Published};
use super::port::{PortMapping, Protocol};
use super::record::{Record, records};

/// Chooses ports of the host that nobody has. The lock is held.
pub(super) fn reserve(
    options: &NetworkOptions,
    own: &Record,
    mappings: &[PortMapping],
) -> Result<Vec<Published>, NetworkError> {
    if mappings.is_empty() {
        return Ok(Vec::new());
    }
    let others = records(options)?.into_iter().filter(|record| record.id != own.id);
    let all = others.flat_map(|record| record.endpoints).chain(own.endpoints.iter().cloned());
    let mut taken: Vec<Published> = all.flat_map(|endpoint| endpoint.published).collect();
    let mut chosen = Vec::new();
    for mapping in mappings {
        let is_free = |port: u16| {
            let clashes = |other: &Published| {
                other.host_port == port
                    && other.protocol == mapping.protocol
                    && (other.host_ip == mapping.host_ip
                        || other.host_ip.is_none()
                        || mapping.host_ip.is_none())
            };
            !taken.iter().any(clashes)
                && can_bind(mapping.host_ip, port, mapping.protocol).is_some()
        };
        let port = match mapping.host_ports.clone() {
            Some(ports) => {
                let first = *ports.start();
                ports.into_iter().find(|port| is_free(*port)).ok_or(NetworkError::PortInUse {
                    host_ip: mapping.host_ip,
                    port: first,
                    protocol: mapping.protocol,
                })?
            }
            None => (0..100)
                .filter_map(|_| can_bind(mapping.host_ip, 0, mapping.protocol))
                .find(|port| is_free(*port))
                .ok_or(NetworkError::PortInUse {
                    host_ip: mapping.host_ip,
                    port: 0,
                    protocol: mapping.protocol,
                })?,
        };
        let published = Published {
            container_port: mapping.container_port,
            protocol: mapping.protocol,
            host_ip: mapping.host_ip,
            host_port: port,
        };
        taken.push(published.clone());
        chosen.push(published);
    }
    Ok(chosen)
}

/// Returns the port if nobody listens on it; for 0, one that is free.
pub(super) fn can_bind(ip: Option<IpAddr>, port: u16, protocol: Protocol) -> Option<u16> {
    let address = (ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port);
    let bound = match protocol {
        Protocol::Tcp => TcpListener::bind(address).and_then(|socket| socket.local_addr()),
        Protocol::Udp => UdpSocket::bind(address).and_then(|socket| socket.local_addr()),
    };
    bound.ok().map(|address| address.port())
}
