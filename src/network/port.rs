//! Ports to publish, as `docker run -p` takes them.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// What a port is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        })
    }
}

/// A port of a container, to be reached by way of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortMapping {
    /// The host's address; all of them if none.
    pub host_ip: Option<IpAddr>,
    /// The ports of the host of which one is taken; any free one if none.
    pub host_ports: Option<RangeInclusive<u16>>,
    pub container_port: u16,
    pub protocol: Protocol,
}

/// A port of a container that the host publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Published {
    pub container_port: u16,
    pub protocol: Protocol,
    /// The host's address; all of them if none.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
}

impl Published {
    /// Returns the same port on all addresses of the host.
    pub(super) fn anywhere(&self) -> Self {
        Published { host_ip: None, ..self.clone() }
    }
}

/// A text that is no port to publish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port {text:?}: {problem}")]
pub struct PortError {
    text: String,
    problem: &'static str,
}

const SHAPE: &str =
    "write [[IP:][HOST_PORT]:]CONTAINER_PORT[/tcp|udp]; a port may be a range as 8000-8010";
const LENGTHS: &str = "the range of the host and that of the container have different lengths";
const NUMBER: &str = "a port is a number from 1 to 65535";

impl PortMapping {
    /// Reads what `-p` takes; a range of the container's makes several.
    pub fn parse(text: &str) -> Result<Vec<Self>, PortError> {
        parse(text).map_err(|problem| PortError { text: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Vec<PortMapping>, &'static str> {
    let (ports, protocol) = match text.rsplit_once('/') {
        None => (text, Protocol::Tcp),
        Some((ports, protocol)) => match protocol.to_ascii_lowercase().as_str() {
            "tcp" => (ports, Protocol::Tcp),
            "udp" => (ports, Protocol::Udp),
            "sctp" => return Err("SCTP is not supported: publish a TCP or UDP port"),
            _ => return Err(SHAPE),
        },
    };
    let (host, container) = match ports.rsplit_once(':') {
        Some((host, container)) => (Some(host), container),
        None => (None, ports),
    };
    let (host_ip, host_port) = match host {
        None => (None, ""),
        Some(host) => match host.rsplit_once(':') {
            // The address has colons of its own and is in brackets.
            Some((ip, port)) => (address(ip)?, port),
            None => (None, host),
        },
    };
    let container_ports = range(container)?;
    let host_ports = match host_port {
        "" | "0" => None,
        port => Some(range(port)?),
    };
    let count = container_ports.len();
    if let Some(host) = &host_ports
        && count > 1
        && host.len() != count
    {
        return Err(LENGTHS);
    }
    let mappings = container_ports.enumerate().map(|(at, container_port)| {
        let host_ports = host_ports.clone().map(|mut ports| {
            if count == 1 {
                return ports;
            }
            let port = ports.nth(at).expect("both ranges have the same length");
            port..=port
        });
        PortMapping { host_ip, host_ports, container_port, protocol }
    });
    Ok(mappings.collect())
}

fn address(text: &str) -> Result<Option<IpAddr>, &'static str> {
    if text.is_empty() {
        return Ok(None);
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address: IpAddr =
        bare.parse().map_err(|_| "what stands before the ports is no IP address")?;
    Ok(Some(address).filter(|address| !address.is_unspecified()))
}

fn range(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| {
        if text.is_empty() {
            return Err(SHAPE);
        }
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| is_number && *port > 0).ok_or(NUMBER)
    };
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err("a range begins with its lowest port");
    }
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let mappings = PortMapping::parse(text).unwrap().into_iter().map(|mapping| {
            let ip = mapping.host_ip.map_or("*".to_owned(), |ip| ip.to_string());
            let host = mapping.host_ports.map_or("any".to_owned(), |ports| format!("{ports:?}"));
            format!("{ip} {host} {}/{}", mapping.container_port, mapping.protocol)
        });
        mappings.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn reads_what_docker_reads() {
        for (text, expected) in [
            ("80", "* any 80/tcp"),
            ("0:80", "* any 80/tcp"),
            ("8080:80/udp", "* 8080..=8080 80/udp"),
            ("8080:80/TCP", "* 8080..=8080 80/tcp"),
            ("127.0.0.1:9000:9000", "127.0.0.1 9000..=9000 9000/tcp"),
            ("127.0.0.1::9000", "127.0.0.1 any 9000/tcp"),
            ("[::1]:80:80", "::1 80..=80 80/tcp"),
            ("0.0.0.0:80:80", "* 80..=80 80/tcp"),
            ("8000-8001:80-81", "* 8000..=8000 80/tcp, * 8001..=8001 81/tcp"),
            ("8000-8010:80", "* 8000..=8010 80/tcp"),
            ("80-81", "* any 80/tcp, * any 81/tcp"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, problem) in [
            ("99999:80", NUMBER),
            ("+80", NUMBER),
            ("80:0", NUMBER),
            ("", SHAPE),
            ("80:", SHAPE),
            ("80/x", SHAPE),
            ("8000-8001:80-82", LENGTHS),
            ("81-80", "a range begins with its lowest port"),
            ("x:80:80", "what stands before the ports is no IP address"),
        ] {
            let error = PortMapping::parse(text).unwrap_err();
            assert_eq!(error, PortError { text: text.to_owned(), problem }, "{text}");
        }
    }
}
