//! What passes between jobs, the host and the world: one table for nft, the same for all networks.
//! Published ports are elements of its maps.
//!
//! It forwards nothing by itself: a firewall of the host that drops what is forwarded, as Docker's
//! does, drops what comes from jobs too.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use super::error::NetworkError;
use super::job::Published;
use super::subnet::Subnet;
use crate::sys::process::{End, Program};

/// Where nft is; `PATH` of a service is not always what it should be.
const PROGRAMS: [&str; 4] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft", "/usr/local/sbin/nft"];
const TIMEOUT: Duration = Duration::from_secs(30);

/// The table. Another pool or another version of these rules has another name, so that running jobs
/// keep theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Firewall {
    name: String,
    pool: Subnet<Ipv4Addr>,
    pool6: Subnet<Ipv6Addr>,
    host_access: bool,
}

/// Counted up when the rules change.
const VERSION: u32 = 1;

impl Firewall {
    pub(super) fn new(pool: Subnet<Ipv4Addr>, pool6: Subnet<Ipv6Addr>, host_access: bool) -> Self {
        let words = |text: String| -> String {
            text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
        };
        let host = if host_access { "" } else { "_closed" };
        let name = format!(
            "oci_hooks_{VERSION}_{}_{}{host}",
            words(pool.to_string()),
            words(pool6.to_string())
        );
        Firewall { name, pool, pool6, host_access }
    }

    /// Makes the table unless it is there. Another process may make it at the same time, or a
    /// firewall of the host may have removed it.
    pub(super) fn install(&self) -> Result<(), NetworkError> {
        if nft(&["list", "table", "inet", &self.name, "--terse"], "").is_ok() {
            return Ok(());
        }
        nft(&["-f", "-"], &self.rules()).map(drop)
    }

    /// Publishes ports.
    pub(super) fn publish(
        &self,
        ports: &[Published],
        container: (Ipv4Addr, Ipv6Addr),
    ) -> Result<(), NetworkError> {
        if ports.is_empty() {
            return Ok(());
        }
        nft(&["-f", "-"], &self.elements("add", ports, container)).map(drop)
    }

    /// Takes published ports back. One that is not there is no error: nobody knows how far a killed
    /// process came.
    pub(super) fn withdraw(
        &self,
        ports: &[Published],
        container: (Ipv4Addr, Ipv6Addr),
    ) -> Result<(), NetworkError> {
        if ports.is_empty() || nft(&["-f", "-"], &self.elements("delete", ports, container)).is_ok()
        {
            return Ok(());
        }
        for port in ports {
            let _ =
                nft(&["-f", "-"], &self.elements("delete", std::slice::from_ref(port), container));
        }
        Ok(())
    }

    fn elements(&self, verb: &str, ports: &[Published], (v4, v6): (Ipv4Addr, Ipv6Addr)) -> String {
        let mut script = String::new();
        for port in ports {
            let Published { host_port, container_port, protocol, .. } = port;
            let mut add = |map: &str, key: &str, to: &str| {
                let _ = writeln!(
                    script,
                    "{verb} element inet {} {map} {{ {key}{protocol} . {host_port} : {to} . {container_port} }}",
                    self.name
                );
            };
            match port.host_ip {
                None => {
                    add("any4", "", &v4.to_string());
                    add("any6", "", &v6.to_string());
                }
                Some(IpAddr::V4(ip)) => add("one4", &format!("{ip} . "), &v4.to_string()),
                Some(IpAddr::V6(ip)) => add("one6", &format!("{ip} . "), &v6.to_string()),
            }
        }
        script
    }

    fn rules(&self) -> String {
        let Firewall { name, pool, pool6, .. } = self;
        // `add` leaves a table that is there as it is; flushing it in the same transaction makes two
        // processes that do this at once end up with one set of rules.
        let host = if self.host_access { "" } else { "fib daddr type local drop" };
        format!(
            r#"add table inet {name}
flush table inet {name}
table inet {name} {{
    map any4 {{ type inet_proto . inet_service : ipv4_addr . inet_service; }}
    map any6 {{ type inet_proto . inet_service : ipv6_addr . inet_service; }}
    map one4 {{ type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; }}
    map one6 {{ type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service; }}

    chain published {{
        dnat ip to ip daddr . meta l4proto . th dport map @one4
        dnat ip6 to ip6 daddr . meta l4proto . th dport map @one6
        dnat ip to meta l4proto . th dport map @any4
        dnat ip6 to meta l4proto . th dport map @any6
    }}
    chain prerouting {{
        type nat hook prerouting priority dstnat;
        meta l4proto {{ tcp, udp }} fib daddr type local jump published
    }}
    chain output {{
        type nat hook output priority -100;
        meta l4proto {{ tcp, udp }} fib daddr type local jump published
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat;
        oifname "ocih*" ip saddr 127.0.0.0/8 masquerade
        ip saddr {pool} oifname != "ocih*" masquerade
        ip6 saddr {pool6} oifname != "ocih*" masquerade
    }}
    chain fenced {{
        ip daddr 169.254.0.0/16 drop
        ip6 daddr fd00:ec2::254 drop
        ip saddr != {pool} meta nfproto ipv4 drop
    }}
    chain forward {{
        type filter hook forward priority filter;
        ct state established,related accept
        iifname "ocih*" jump fenced
        iifname "ocih*" oifname "ocih*" ct status dnat accept
        iifname "ocih*" oifname "ocih*" drop
    }}
    chain input {{
        type filter hook input priority filter;
        ct state established,related accept
        iifname "ocih*" jump fenced
        iifname "ocih*" ip daddr 127.0.0.0/8 drop
        iifname "ocih*" {host}
    }}
}}
"#
        )
        .replace("        iifname \"ocih*\" \n", "")
    }
}

/// Runs nft with a script on its standard input.
fn nft(arguments: &[&str], script: &str) -> Result<String, NetworkError> {
    let path =
        PROGRAMS.iter().map(Path::new).find(|path| path.exists()).ok_or(NetworkError::NoNft)?;
    let mut program = Program::new(path, Path::new("/"));
    program.argv = vec![OsStr::new("nft")];
    program.argv.extend(arguments.iter().map(OsStr::new));
    program.stdin = script.as_bytes();
    program.timeout = Some(TIMEOUT);
    let finished = program.run()?;
    if finished.end == End::Exited(0) {
        return Ok(String::from_utf8_lossy(&finished.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&finished.stderr);
    Err(NetworkError::Nft { message: message.split_whitespace().collect::<Vec<_>>().join(" ") })
}
