//! Errors of networks.

use std::io;
use std::net::IpAddr;

use oci_hooks_files::fs::{PathError, ReadError, ReplaceError};
use oci_hooks_files::process::RunError;
use oci_hooks_files::record::RecordError;

use super::port::PortProtocol;
use super::uplink_program::UplinkError;

/// Errors of creating, using or removing a network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// A record cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record cannot be written.
    #[error(transparent)]
    Write(#[from] ReplaceError),
    /// A record is corrupt, or a newer version wrote it.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The network does not exist.
    #[error(
        "network {id} does not exist: prepare_job did not run, or cleanup_job has removed the network"
    )]
    Unknown { id: String },
    #[error("network {id} already exists")]
    Exists { id: String },
    /// The name of a network or container is invalid: it becomes part of file names.
    #[error(
        "invalid name {name:?} of a network or a container: use letters, digits, `-`, `_` and `.`"
    )]
    Name { name: String },
    /// The container is already connected.
    #[error("container {name} is already connected to network {id}")]
    Attached { name: String, id: String },
    /// The kernel does not create a link, an address or a route.
    #[error("cannot {action} for network {id}")]
    Link { action: &'static str, id: String, source: io::Error },
    /// All networks of the pool are in use.
    #[error(
        "all {count} networks of {pool} are in use, by other jobs or by routes of this host: \
         set a larger `pool`, or `pool6` if that has fewer networks, under [network] of the settings"
    )]
    PoolEmpty {
        pool: String,
        /// Number of networks in the pool.
        count: u32,
    },
    /// The network has no address left.
    #[error("network {id} is full: it has addresses for 253 containers")]
    Full { id: String },
    /// The host's port is in use.
    #[error(
        "port {port}/{protocol} of the host is in use{}{}: publish another port, or leave out the host port to get \
         a free one",
        host_ip.map_or_else(String::new, |ip| format!(" on {ip}")),
        holder.as_ref().map_or_else(String::new, |holder| format!(", by {holder}"))
    )]
    PortInUse { host_ip: Option<IpAddr>, port: u16, protocol: PortProtocol, holder: Option<String> },
    /// No host port is free for a container port without a requested one.
    #[error("all ports of the host are in use")]
    NoPort,
    /// The address to publish a port on is not one of the host's.
    #[error("cannot publish a port on {host_ip}: the host does not have this address")]
    HostAddress { host_ip: IpAddr },
    /// The host's port cannot be bound.
    #[error("cannot use port {port}/{protocol} of the host")]
    Bind { port: u16, protocol: PortProtocol, source: io::Error },
    /// Only root may publish the port.
    #[error(
        "port {port}/{protocol} of the host is reserved for root: publish a port from {first} on, or leave out the \
         host port to get a free one; root can permit it to all users with \
         `sysctl net.ipv4.ip_unprivileged_port_start={port}`"
    )]
    RootsPort {
        port: u16,
        protocol: PortProtocol,
        /// First port that other users may publish.
        first: u16,
    },
    /// The network of a rootless user has no uplink program, which would publish the port.
    #[error(
        "port {port}/{protocol} cannot be published: with `uplink = \"none\"` in [network] the host has no \
         connection to jobs of an ordinary user"
    )]
    NoUplink { port: u16, protocol: PortProtocol },
    /// The uplink cannot listen on the address.
    #[error(
        "cannot publish a port on {host_ip}: IPv6 requires pasta, and a default IPv6 route on the host"
    )]
    OnlyIpv4 { host_ip: IpAddr },
    /// The network cannot have an uplink.
    #[error(transparent)]
    Uplink(#[from] UplinkError),
    /// The packet filter rejects a change.
    #[error("cannot {action} in the packet filter{}", firewall_hint(source))]
    Firewall { action: &'static str, source: io::Error },
    #[error("networks need nft: install nftables")]
    NoNft,
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("nft rejects the rules: {message}")]
    Nft { message: String },
}

/// Returns the usual reason of a change that the kernel rejected, after a colon; empty for other errors.
fn firewall_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            ": another job or program has made the same change, for example published the same port: use another \
             port, or wait for the other job"
        }
        _ if error.raw_os_error().is_none() => "",
        _ => ": the kernel needs nf_tables, and this process CAP_NET_ADMIN",
    }
}

impl NetworkError {
    /// Returns whether the error means that a record is unreadable: corrupt, or of another version.
    pub(super) fn is_unreadable(&self) -> bool {
        match self {
            NetworkError::Record(_) => true,
            NetworkError::Read(error) => error.is_file_defect(),
            _ => false,
        }
    }
}

#[test]
fn only_missing_features_of_the_kernel_are_asked_for() {
    let text = |number| {
        let source = io::Error::from_raw_os_error(number);
        NetworkError::Firewall { action: "publish ports", source }.to_string()
    };
    assert!(text(1).ends_with("the kernel needs nf_tables, and this process CAP_NET_ADMIN"));
    assert!(text(17).contains("published the same port: use another port"));
}
