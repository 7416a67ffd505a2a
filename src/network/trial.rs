//! Whether the host lets through what a job sends to the world, and who does not: a packet is sent from a
//! network as jobs have it, and the kernel says what becomes of it in which chain.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::error::NetworkError;
use super::job::Network;
use super::link::forwards_ipv6;
use super::netlink;
use super::record::{Records, lock, records};
use super::request::{EndpointRequest, NetworkOptions, NetworkRequest};
use super::trace::{Passage, Trace};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::netns;

/// The network's id. It has no other meaning: one that a killed process left is removed by the next.
const ID: &str = "doctor";

/// Addresses that nobody has: of TEST-NET-1, and of the block that routers discard. The packets end with
/// the next router that knows.
const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const TARGET6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1));

const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// Nobody answers: it is enough that the packet is sent.
const CONNECT: Duration = Duration::from_millis(50);
/// How long it may take until the kernel has said what became of it.
const ANSWER: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(5);

/// Returns what becomes of packets that a job sends to the world: by IPv4, and by IPv6.
pub fn try_passage(options: &NetworkOptions) -> Result<[Passage; 2], NetworkError> {
    remove_trial(options)?;
    let request = NetworkRequest { id: ID.to_owned(), user_namespace: None };
    let forwarded = forwards_ipv4();
    let network = Network::create(options, &request)?;
    let tried = try_both(&network);
    let removed = network.remove();
    let passages = tried?;
    removed?;
    if !forwarded {
        stop_forwarding(options)?;
    }
    Ok(passages)
}

/// Leaves the host as it was found, unless a job has come meanwhile.
fn stop_forwarding(options: &NetworkOptions) -> Result<(), NetworkError> {
    let _lock = lock(options)?;
    let Records { known, unreadable } = records(options)?;
    if known.is_empty() && unreadable.is_empty() {
        fs::write(FORWARD, "0").at("write", Path::new(FORWARD))?;
    }
    Ok(())
}

fn forwards_ipv4() -> bool {
    fs::read_to_string(FORWARD).is_ok_and(|value| value.trim() == "1")
}

/// Removes what a killed process left of a trial.
pub fn remove_trial(options: &NetworkOptions) -> Result<(), NetworkError> {
    Network::remove_id(options, ID)
}

fn try_both(network: &Network) -> Result<[Passage; 2], NetworkError> {
    let probe = network.attach(&EndpointRequest { name: "probe".to_owned(), ports: Vec::new() })?;
    let trace = Trace::start(network.link())?;
    let unreadable = |source| PathError::new("read", Path::new("/proc/thread-self/net"), source);
    let leads_out = !netlink::routes().map_err(unreadable)?.defaults.is_empty();
    let leads_out6 =
        forwards_ipv6() && !netlink::routes6().map_err(unreadable)?.defaults.is_empty();
    let passage = |target: IpAddr, leads_out: bool| {
        if !leads_out {
            return Ok(Passage::Nowhere);
        }
        netns::within(&probe.netns, || {
            // Whatever comes of it.
            let _ = TcpStream::connect_timeout(&SocketAddr::new(target, 443), CONNECT);
        })?;
        follow(&trace, target.is_ipv6())
    };
    Ok([passage(TARGET, leads_out)?, passage(TARGET6, leads_out6)?])
}

/// Waits for what the kernel says of the packet.
fn follow(trace: &Trace, is_ipv6: bool) -> Result<Passage, NetworkError> {
    let end = Instant::now() + ANSWER;
    while Instant::now() < end {
        if let Some(passage) = trace.next(is_ipv6)? {
            return Ok(passage);
        }
        thread::park_timeout(STEP);
    }
    Ok(Passage::Lost)
}
