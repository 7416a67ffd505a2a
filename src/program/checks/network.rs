//! What networks of containers need: namespaces, nftables, forwarding, a resolver.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use super::super::programs::find;
use super::{Check, firewall};
use crate::network::NetworkOptions;
use crate::sys::process::{End, Program};

pub fn checks(options: &NetworkOptions) -> Vec<Check> {
    let mut checks = own();
    checks.extend(firewall::checks(options));
    checks
}

/// Checks what networks need in the network namespace that they are made from.
pub fn own() -> Vec<Check> {
    vec![namespaces(), nft(), forwarding()]
}

/// Looks for a resolver of the host that containers do not reach.
pub fn resolver() -> Option<Check> {
    resolvers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
}

/// Looks for a resolver that is this machine by its own address: jobs do not reach it there. Those on
/// loopback are replaced anyway.
fn resolvers(text: &str) -> Option<Check> {
    let words = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = words.filter_map(|word| word.trim().parse::<IpAddr>().ok());
    // Only an address of this machine can be bound to.
    let is_own = |address: &IpAddr| UdpSocket::bind((*address, 0)).is_ok();
    let own = addresses.filter(|address| !address.is_loopback()).find(is_own)?;
    Some(Check::warn(
        "resolver",
        format!("{own} is this machine, which jobs cannot reach"),
        "name another one as `dns` under [network], or set `host-access = true` there",
    ))
}

fn namespaces() -> Check {
    if Path::new("/proc/self/ns/net").exists() {
        return Check::ok("network namespaces", "available");
    }
    Check::fail("network namespaces", "not supported by this kernel", "a kernel with CONFIG_NET_NS")
}

fn nft() -> Check {
    match list(&["list", "tables"]) {
        Some(Ok(_)) => Check::ok("nft", "works"),
        Some(Err(problem)) => {
            let hint = "modprobe nf_tables; in a container it needs CAP_NET_ADMIN";
            Check::fail("nft", problem, hint)
        }
        None => Check::fail("nft", "not installed", "apt install nftables, dnf install nftables"),
    }
}

fn forwarding() -> Check {
    let path = Path::new("/proc/sys/net/ipv4/ip_forward");
    if fs::read_to_string(path).is_ok_and(|value| value.trim() == "1") {
        return Check::ok("forwarding", "on");
    }
    // The first job turns it on, if it may.
    match fs::OpenOptions::new().write(true).open(path) {
        Ok(_) => Check::ok("forwarding", "off; the first job turns it on"),
        Err(error) => Check::fail(
            "forwarding",
            format!("off, and {} cannot be written: {error}", path.display()),
            "sysctl -w net.ipv4.ip_forward=1",
        ),
    }
}

/// Asks nft; none if it is not there.
fn list(arguments: &[&str]) -> Option<Result<String, String>> {
    let nft = find("nft").ok()?;
    let mut call = Program::new(&nft, Path::new("/"));
    call.argv = vec![OsStr::new("nft")];
    call.argv.extend(arguments.iter().map(OsStr::new));
    call.timeout = Some(Duration::from_secs(10));
    Some(match call.run() {
        Ok(finished) if finished.end == End::Exited(0) => {
            Ok(String::from_utf8_lossy(&finished.stdout).into_owned())
        }
        Ok(finished) => {
            let text = String::from_utf8_lossy(&finished.stderr).into_owned();
            Err(text.lines().next().unwrap_or("nft fails").to_owned())
        }
        Err(error) => Err(error.to_string()),
    })
}

#[test]
fn a_resolver_that_is_this_machine_is_found() {
    // Nobody has the addresses of documentation; any address of 127.0.0.0/8 is on loopback.
    for text in ["", "nameserver 192.0.2.1\n", "nameserver 127.0.0.53\nnameserver x\n"] {
        assert!(resolvers(text).is_none(), "{text}");
    }
    assert!(resolvers("options a\nnameserver 0.0.0.0\n").is_some());
}
