//! Options and requests for networks and for containers in them, and the resulting endpoints.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::{Ipv4Net, Ipv6Net};
use oci_hooks_host::privilege::Privilege;

use super::interface::InterfaceName;
use super::port::{PortMapping, PublishedPort};
use super::subnet::Subnet;
use super::uplink_program::UplinkChoice;

/// A network to create.
#[derive(Clone, Debug)]
pub struct NetworkRequest {
    /// Letters, digits, `-`, `_` and `.`, starting with a letter or digit.
    pub id: String,
    /// Owner of a user namespace for the containers, which then owns their network namespaces; `None` for the
    /// host's user namespace.
    pub user_namespace: Option<NamespaceOwner>,
}

/// Owner of the user namespace of a network's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceOwner {
    /// The user who creates the namespace, and has all capabilities in it, even those that the process lacks.
    Creator,
    /// The first of the network's private ids: the kernel's limits for each user then apply to this network only.
    FirstId,
}

impl NetworkRequest {
    /// Creates a request for containers in the host's user namespace.
    pub fn new(id: impl Into<String>) -> Self {
        NetworkRequest { id: id.into(), user_namespace: None }
    }
}

/// A container to connect.
#[derive(Clone, Debug)]
pub struct EndpointRequest {
    /// Name, unique in the network, of the same characters as an id.
    pub name: String,
    /// Ports to publish on the host.
    pub ports: Vec<PortMapping>,
}

impl EndpointRequest {
    /// Creates a request that publishes no ports.
    pub fn new(name: impl Into<String>) -> Self {
        EndpointRequest { name: name.into(), ports: Vec::new() }
    }
}

/// A connected container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkEndpoint {
    /// Pin of the network namespace, a file.
    pub netns: PathBuf,
    /// IPv4 address, then the IPv6 address if the host has IPv6.
    pub addresses: Vec<IpAddr>,
    pub published: Vec<PublishedPort>,
    /// Resolver for a container that cannot reach the host's resolvers, for example on the host's loopback.
    pub resolver: Option<IpAddr>,
}

/// Options of networks on this host.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    /// Directory that is cleared on reboot, such as `/run/oci-hooks`.
    pub run: PathBuf,
    /// Pool of IPv4 addresses.
    pub pool: Subnet<Ipv4Net>,
    /// Pool of IPv6 addresses.
    pub pool6: Subnet<Ipv6Net>,
    /// If set, containers reach services of the host by its addresses, but never by its loopback.
    pub host_access: bool,
    /// Additional interfaces, besides the default routes', through which containers reach the world, even if
    /// their kind usually leads to containers and virtual machines of the host.
    pub uplinks: Vec<InterfaceName>,
    pub privilege: Privilege,
    /// Uplink program, if networks are created in a rootless user's network namespace.
    pub uplink: UplinkChoice,
}

impl NetworkOptions {
    /// Returns the options for networks with records in a directory: default pools, access to the host,
    /// uplinks of the default routes.
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
    /// Returns options with the default pools.
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
