//! What networks and containers in them are asked for, and what they have then.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::{Ipv4Net, Ipv6Net};

use super::interface::Interface;
use super::port::{PortMapping, Published};
use super::subnet::Subnet;
use crate::sys::privilege::Privilege;
use crate::sys::uplink::UplinkChoice;

/// What a network is to be called, and whose ids its containers have.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NetworkRequest {
    /// Its id: letters, digits, `-`, `_` and `.`, the first one a letter or digit.
    pub id: String,
    /// The owner of a user namespace for its containers, to which their network namespaces then belong;
    /// without one they are in the host's.
    pub user_namespace: Option<NamespaceOwner>,
}

/// Who owns the user namespace of a network's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceOwner {
    /// The user who makes it, who has all capabilities in it, also those that the process lacks.
    Maker,
    /// The first of the network's private ids: what the kernel limits for each user it limits for this
    /// network alone.
    FirstId,
}

impl NetworkRequest {
    /// Returns one of containers in the host's user namespace.
    pub fn new(id: impl Into<String>) -> Self {
        NetworkRequest { id: id.into(), user_namespace: None }
    }
}

/// A container that is to be connected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointRequest {
    /// A name that no other container of the network has, of the same characters as an id.
    pub name: String,
    /// Ports to publish on the host.
    pub ports: Vec<PortMapping>,
}

impl EndpointRequest {
    /// Returns one that publishes no ports.
    pub fn new(name: impl Into<String>) -> Self {
        EndpointRequest { name: name.into(), ports: Vec::new() }
    }
}

/// What a connected container has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// The pin of its network namespace, a file.
    pub netns: PathBuf,
    /// The IPv4 address, then the IPv6 address if the host has IPv6.
    pub addresses: Vec<IpAddr>,
    pub published: Vec<Published>,
    /// A resolver that it reaches if it reaches none of the host's, as those on the host's loopback.
    pub resolver: Option<IpAddr>,
}

/// How networks are made on this host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NetworkOptions {
    /// What does not outlive a boot, as `/run/oci-hooks`.
    pub run: PathBuf,
    /// Where networks get IPv4 addresses from.
    pub pool: Subnet<Ipv4Net>,
    /// Where networks get IPv6 addresses from.
    pub pool6: Subnet<Ipv6Net>,
    /// Whether containers reach services of the host by its addresses; never by its loopback.
    pub host_access: bool,
    /// Interfaces that containers reach the world by, besides those of the host's default routes, though
    /// they are bridges or others that lead to containers and virtual machines of the host itself.
    pub uplinks: Vec<Interface>,
    /// What this process may do.
    pub privilege: Privilege,
    /// What leads to the world, where networks are made in a namespace of a user's own.
    pub uplink: UplinkChoice,
}

impl NetworkOptions {
    /// Returns those of networks that are kept in a directory: the default pools, the host reached by
    /// its addresses, the uplinks of its default routes.
    pub fn new(run: impl Into<PathBuf>) -> Self {
        NetworkOptions {
            run: run.into(),
            pool: Subnet::default(),
            pool6: Subnet::default(),
            host_access: true,
            uplinks: Vec::new(),
            privilege: Privilege::Root,
            uplink: UplinkChoice::Auto,
        }
    }
}

#[cfg(test)]
impl NetworkOptions {
    /// Returns those with the default pools.
    pub(super) fn for_test(run: &std::path::Path) -> Self {
        NetworkOptions {
            run: run.to_owned(),
            pool: Subnet::default(),
            pool6: Subnet::default(),
            host_access: false,
            uplinks: Vec::new(),
            privilege: Privilege::Root,
            uplink: UplinkChoice::None,
        }
    }
}
