//! Tests whether the host forwards a job's packets to the world, and finds the chain that drops them: a
//! packet is sent from a network like a job's, and traced by the kernel.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_host::netns;

use super::error::NetworkError;
use super::job::Network;
use super::link::forwards_ipv6;
use super::netlink;
use super::record::{NetworkRecords, lock, records};
use super::request::{EndpointRequest, NetworkOptions, NetworkRequest};
use super::trace::{ForwardResult, PacketTrace};

/// Id of the test network. A network left by a killed process is removed by the next test.
const ID: &str = "doctor";

/// Unused IPv4 address in TEST-NET-1. Packets to it end at the next router that knows this block.
const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Unused IPv6 address in the discard prefix `100::/64`.
const TARGET6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1));

const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// Timeout of connecting to the target, where no host answers: sending the packet is enough.
const CONNECT: Duration = Duration::from_millis(50);
/// Timeout of the kernel's trace of the packet.
const ANSWER: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(5);

/// Returns the results of sending packets from a job to the world, by IPv4 and IPv6.
pub fn test_forwarding(options: &NetworkOptions) -> Result<[ForwardResult; 2], NetworkError> {
    remove_test_network(options)?;
    let request = NetworkRequest { id: ID.to_owned(), user_namespace: None };
    let forwarded = fs::read_to_string(FORWARD).is_ok_and(|value| value.trim() == "1");
    let network = Network::create(options, &request)?;
    let tried = try_both(&network);
    let removed = network.remove();
    let results = tried?;
    removed?;
    if !forwarded {
        stop_forwarding(options)?;
    }
    Ok(results)
}

/// Turns forwarding of IPv4 off again, unless a network has been created meanwhile.
fn stop_forwarding(options: &NetworkOptions) -> Result<(), NetworkError> {
    let _lock = lock(options)?;
    let NetworkRecords { known, unreadable } = records(options)?;
    if known.is_empty() && unreadable.is_empty() {
        fs::write(FORWARD, "0").with_path("write", Path::new(FORWARD))?;
    }
    Ok(())
}

/// Removes the network of a killed test.
pub fn remove_test_network(options: &NetworkOptions) -> Result<(), NetworkError> {
    Network::remove_id(options, ID)
}

fn try_both(network: &Network) -> Result<[ForwardResult; 2], NetworkError> {
    let probe = network.attach(&EndpointRequest { name: "probe".to_owned(), ports: Vec::new() })?;
    let trace = PacketTrace::start(network.link())?;
    let unreadable = |source| PathError::new("read", Path::new("/proc/thread-self/net"), source);
    let leads_out = !netlink::routes().map_err(unreadable)?.defaults.is_empty();
    let leads_out6 =
        forwards_ipv6() && !netlink::routes6().map_err(unreadable)?.defaults.is_empty();
    let send = |target: IpAddr, leads_out: bool| {
        if !leads_out {
            return Ok(ForwardResult::NoRoute);
        }
        netns::run_in_namespace(&probe.netns, || {
            // The result does not matter.
            let _ = TcpStream::connect_timeout(&SocketAddr::new(target, 443), CONNECT);
        })?;
        follow(&trace, target.is_ipv6())
    };
    Ok([send(TARGET, leads_out)?, send(TARGET6, leads_out6)?])
}

/// Waits for the kernel's report on the packet.
fn follow(trace: &PacketTrace, is_ipv6: bool) -> Result<ForwardResult, NetworkError> {
    let end = Instant::now() + ANSWER;
    while Instant::now() < end {
        if let Some(result) = trace.next(is_ipv6)? {
            return Ok(result);
        }
        thread::park_timeout(STEP);
    }
    Ok(ForwardResult::Lost)
}
