//! What can go wrong with a network.

use std::io;
use std::net::IpAddr;

use super::port::Protocol;
use crate::sys::fs::{PathError, ReadError, ReplaceError};
use crate::sys::process::RunError;
use crate::sys::record::RecordError;
use crate::sys::uplink::UplinkError;

/// A network could not be made, used or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// A record cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record cannot be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
    /// A record holds something else, or a newer version wrote it.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// There is no such network.
    #[error("network {id} does not exist: prepare_job did not run or was cleaned up")]
    Unknown { id: String },
    #[error("network {id} already exists")]
    Exists { id: String },
    /// A name is none for a network or a container: it names files.
    #[error(
        "invalid name {name:?} of a network or a container: use letters, digits, `-`, `_` and `.`"
    )]
    Name { name: String },
    /// A container is connected already.
    #[error("container {name} is already connected to network {id}")]
    Attached { name: String, id: String },
    /// The kernel does not make a link, an address or a route.
    #[error("cannot {action} for network {id}")]
    Link {
        /// What could not be done.
        action: &'static str,
        id: String,
        source: io::Error,
    },
    /// All networks of the pool are in use.
    #[error(
        "all {count} networks of {pool} are in use, by other jobs or by routes of this host: \
         configure a larger pool"
    )]
    PoolEmpty {
        pool: String,
        /// How many networks it has.
        count: u32,
    },
    /// A network has no address left.
    #[error("network {id} is full: it has addresses for 253 containers")]
    Full { id: String },
    /// A port of the host is not free.
    #[error(
        "port {port}/{protocol} of the host is in use{}{}: publish another one, or none to get a free one",
        host_ip.map_or_else(String::new, |ip| format!(" on {ip}")),
        holder.as_ref().map_or_else(String::new, |holder| format!(", by {holder}"))
    )]
    PortInUse { host_ip: Option<IpAddr>, port: u16, protocol: Protocol, holder: Option<String> },
    /// No port of the host is free, of those that are nobody's in particular.
    #[error("all ports of the host are in use")]
    NoPort,
    /// A port is to be published on an address that the host does not have.
    #[error("cannot publish a port on {host_ip}: the host does not have this address")]
    HostAddress { host_ip: IpAddr },
    /// The host does not let a port be used.
    #[error("cannot use port {port}/{protocol} of the host")]
    Bind { port: u16, protocol: Protocol, source: io::Error },
    /// A port is to be published that only root may have.
    #[error(
        "port {port}/{protocol} of the host is root's: publish one from {first} on, or none to get a free one; \
         root lets all users have it by `sysctl net.ipv4.ip_unprivileged_port_start={port}`"
    )]
    RootsPort {
        port: u16,
        protocol: Protocol,
        /// The first that others may have.
        first: u16,
    },
    /// A port is to be published of a job that has no way out.
    #[error(
        "port {port}/{protocol} cannot be published: with `uplink = \"none\"` in [network] nothing leads from the \
         host to jobs of an ordinary user"
    )]
    NoWayIn { port: u16, protocol: Protocol },
    /// What leads out does not take an address.
    #[error(
        "cannot publish a port on {host_ip}: that takes pasta, and a host with a default route of IPv6"
    )]
    OnlyIpv4 { host_ip: IpAddr },
    /// Nothing leads out of the network.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    /// The packet filter does not take a change.
    #[error("cannot {action} in the packet filter: the kernel needs nf_tables, and CAP_NET_ADMIN")]
    Firewall {
        /// What could not be done.
        action: &'static str,
        source: io::Error,
    },
    #[error("networks need nft: install nftables")]
    NoNft,
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("nft rejects the rules: {message}")]
    Nft { message: String },
}

impl NetworkError {
    /// Returns whether it says that nobody can read a record: it is damaged, or of another version.
    pub(super) fn is_unreadable(&self) -> bool {
        match self {
            NetworkError::Record(_) => true,
            NetworkError::Read(error) => error.is_of_the_file(),
            _ => false,
        }
    }
}
