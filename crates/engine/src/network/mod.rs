//! One network per job: namespaces, a bridge, addresses, published ports.
//!
//! A [`Network`] is a bridge in its own network namespace. Each container's namespace is linked to it, and
//! one link leads to the host, which forwards and masquerades outgoing packets. So a job has one entry in the
//! host's tables however many services it has, and removing it means removing the mounts that pin its
//! namespaces: the kernel does the rest.
//!
//! Containers of one job reach each other by IPv4 and IPv6. They do not reach containers of other jobs, even by
//! published ports, nor the host's loopback, the addresses where clouds serve credentials of machines, or other
//! containers and virtual machines of the host. They reach the world by IPv4, and by IPv6 if the host already
//! forwards it.
//!
//! Our table in the host's packet filter exists as long as any network does.

mod error;
mod firewall;
mod forward_test;
mod interface;
mod job;
mod link;
mod netlink;
mod nfnetlink;
mod nftables;
mod outside;
mod port;
mod record;
mod request;
mod reserve;
mod subnet;
mod trace;
mod uplink;
mod uplink_program;

pub use error::NetworkError;
pub use forward_test::{remove_test_network, test_forwarding};
pub use interface::{InterfaceError, InterfaceName};
pub use job::Network;
pub use port::{PortError, PortMapping, PortProtocol, PublishedPort};
pub use request::{
    EndpointRequest, NamespaceOwner, NetworkEndpoint, NetworkOptions, NetworkRequest,
};
pub use subnet::{Subnet, SubnetError};
pub use trace::{DroppingChain, ForwardResult};
pub use uplink::{ATTEMPTS, UplinkTestResult, test_uplink};
pub use uplink_program::{TUN, Uplink, UplinkChoice, UplinkError};
