//! One network a job: namespaces, a bridge, addresses, published ports.
//!
//! A [`Network`] is a bridge in a network namespace of its own. Each container's namespace is linked
//! to it, and one link leads from it to the host, which passes on what goes further and hides the
//! addresses. So a job is one place in the host's tables however many services it has, and taking
//! it apart is taking away the mounts that keep its namespaces: the kernel does the rest.
//!
//! Containers of one job reach each other by IPv4 and IPv6. They do not reach those of other jobs, but
//! by ports that those publish; nor the host's loopback, nor the addresses on which clouds give their
//! machines' secrets away; nor containers and virtual machines that others have on the host. To the
//! world they go by IPv4, and by IPv6 if the host forwards it already.
//!
//! What is ours in the host's packet filter is there as long as there is a network.

mod error;
mod firewall;
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
mod trial;
mod uplink;

pub use error::NetworkError;
pub use interface::{Interface, InterfaceError};
pub use job::Network;
pub use port::{PortError, PortMapping, Protocol, Published};
pub use request::{Endpoint, EndpointRequest, NamespaceOwner, NetworkOptions, NetworkRequest};
pub use subnet::{Subnet, SubnetError};
pub use trace::{Barrier, Passage};
pub use trial::{remove_trial, try_passage};
pub use uplink::{ATTEMPTS, UplinkTrial, try_uplink};
