//! Checks for container networks: namespaces, nftables, forwarding, DNS resolver.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use oci_hooks_engine::network::NetworkOptions;
use oci_hooks_files::process::{ChildProgram, ProgramEnd};

use super::super::programs::find;
use super::{HostCheck, firewall};

/// Checks that networks of jobs can be created, and that no firewall blocks their traffic.
pub fn checks(options: &NetworkOptions) -> Vec<HostCheck> {
    let mut checks = check_own_namespace();
    checks.extend(firewall::checks(options));
    checks
}

/// Checks network namespaces, nftables and forwarding in the current network namespace, in which
/// networks of jobs are created.
pub fn check_own_namespace() -> Vec<HostCheck> {
    vec![namespaces(), nft(), forwarding()]
}

/// Checks `/etc/resolv.conf` for a DNS resolver that containers cannot reach.
pub fn resolver() -> Option<HostCheck> {
    resolvers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default())
}

/// Returns a warning if the given content of `/etc/resolv.conf` names a DNS resolver at an address
/// of this machine, which jobs cannot reach. Resolvers on loopback are replaced in containers, so
/// they are ignored.
fn resolvers(text: &str) -> Option<HostCheck> {
    let words = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = words.filter_map(|word| word.trim().parse::<IpAddr>().ok());
    // `bind` succeeds only for addresses of this machine.
    let is_own = |address: &IpAddr| UdpSocket::bind((*address, 0)).is_ok();
    let own = addresses.filter(|address| !address.is_loopback()).find(is_own)?;
    Some(HostCheck::warn(
        "resolver",
        format!("{own} is an address of this machine, which jobs cannot reach"),
        "name another one as `dns` under [network], or set `host-access = true` there",
    ))
}

fn namespaces() -> HostCheck {
    if Path::new("/proc/self/ns/net").exists() {
        return HostCheck::ok("network namespaces", "available");
    }
    HostCheck::fail(
        "network namespaces",
        "not supported by this kernel",
        "use a kernel with CONFIG_NET_NS",
    )
}

fn nft() -> HostCheck {
    match list(&["list", "tables"]) {
        Some(Ok(_)) => HostCheck::ok("nft", "works"),
        Some(Err(problem)) => {
            let hint = "modprobe nf_tables; if this runs in a container, give that CAP_NET_ADMIN";
            HostCheck::fail("nft", problem, hint)
        }
        None => {
            HostCheck::fail("nft", "not installed", "apt install nftables, dnf install nftables")
        }
    }
}

fn forwarding() -> HostCheck {
    let path = Path::new("/proc/sys/net/ipv4/ip_forward");
    if fs::read_to_string(path).is_ok_and(|value| value.trim() == "1") {
        return HostCheck::ok("forwarding", "on");
    }
    // The first job turns forwarding on, if the file is writable.
    match fs::OpenOptions::new().write(true).open(path) {
        Ok(_) => HostCheck::ok("forwarding", "off; the first job turns it on"),
        Err(error) => HostCheck::fail(
            "forwarding",
            format!("off, and {} cannot be written: {error}", path.display()),
            "sysctl -w net.ipv4.ip_forward=1",
        ),
    }
}

/// Runs nft, and returns its output or an error message; `None` if nft is not installed.
fn list(arguments: &[&str]) -> Option<Result<String, String>> {
    let nft = find("nft").ok()?;
    let mut call = ChildProgram::new(&nft, Path::new("/"));
    call.argv = vec![OsStr::new("nft")];
    call.argv.extend(arguments.iter().map(OsStr::new));
    call.timeout = Some(Duration::from_secs(10));
    Some(match call.run() {
        Ok(finished) if finished.end == ProgramEnd::Exited(0) => {
            Ok(String::from_utf8_lossy(&finished.stdout).into_owned())
        }
        Ok(finished) => {
            let text = String::from_utf8_lossy(&finished.stderr).into_owned();
            Err(text.lines().next().unwrap_or("nft failed without a message").to_owned())
        }
        Err(error) => Err(error.to_string()),
    })
}

#[test]
fn resolver_on_this_machine_is_detected() {
    // 192.0.2.1 is reserved for documentation; 127.0.0.53 is on loopback.
    for text in ["", "nameserver 192.0.2.1\n", "nameserver 127.0.0.53\nnameserver x\n"] {
        assert!(resolvers(text).is_none(), "{text}");
    }
    assert!(resolvers("options a\nnameserver 0.0.0.0\n").is_some());
}
