//! Ports to publish, in the syntax of `docker run -p`.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortProtocol {
    Tcp,
    Udp,
}

impl fmt::Display for PortProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortProtocol::Tcp => "tcp",
            PortProtocol::Udp => "udp",
        })
    }
}

/// A port of a container to publish on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// Address of the host; `None` for all addresses.
    pub host_ip: Option<IpAddr>,
    /// Ports of the host to choose from; `None` for any free port.
    pub host_ports: Option<RangeInclusive<u16>>,
    pub container_port: u16,
    pub protocol: PortProtocol,
}

/// A published port of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPort {
    pub container_port: u16,
    pub protocol: PortProtocol,
    /// Address of the host; `None` for all addresses.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
}

impl PublishedPort {
    /// Returns the same port on all addresses of the host.
    pub(super) fn to_any_address(&self) -> Self {
        PublishedPort { host_ip: None, ..self.clone() }
    }
}

/// Error of parsing a port to publish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port {text:?}: {problem}")]
pub struct PortError {
    text: String,
    problem: &'static str,
}

const SHAPE: &str = "expected [[IP:][HOST_PORT]:]CONTAINER_PORT[/tcp|udp], with ports from 1 to 65535 or \
                     ranges such as 8000-8010";
const LENGTHS: &str = "the port ranges of host and container have different lengths";
const NUMBER: &str = "a port is a number from 1 to 65535";

impl PortMapping {
    /// Parses the argument of `-p`; a range of container ports yields several mappings.
    pub fn parse(text: &str) -> Result<Vec<Self>, PortError> {
        parse(text).map_err(|problem| PortError { text: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Vec<PortMapping>, &'static str> {
    let (ports, protocol) = match text.rsplit_once('/') {
        None => (text, PortProtocol::Tcp),
        Some((ports, protocol)) => match protocol.to_ascii_lowercase().as_str() {
            "tcp" => (ports, PortProtocol::Tcp),
            "udp" => (ports, PortProtocol::Udp),
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
            // An IPv6 address contains colons and is in brackets.
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
        bare.parse().map_err(|_| "the text before the ports is not an IP address")?;
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

    fn parse_and_format(text: &str) -> String {
        let mappings = PortMapping::parse(text).unwrap().into_iter().map(|mapping| {
            let ip = mapping.host_ip.map_or("*".to_owned(), |ip| ip.to_string());
            let host = mapping.host_ports.map_or("any".to_owned(), |ports| format!("{ports:?}"));
            format!("{ip} {host} {}/{}", mapping.container_port, mapping.protocol)
        });
        mappings.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn ports_are_parsed_like_in_docker() {
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
            assert_eq!(parse_and_format(text), expected, "{text}");
        }
    }

    #[test]
    fn parse_errors_name_the_mistake() {
        for (text, problem) in [
            ("99999:80", NUMBER),
            ("+80", NUMBER),
            ("80:0", NUMBER),
            ("", SHAPE),
            ("80:", SHAPE),
            ("80/x", SHAPE),
            ("8000-8001:80-82", LENGTHS),
            ("81-80", "a range begins with its lowest port"),
            ("x:80:80", "the text before the ports is not an IP address"),
        ] {
            let error = PortMapping::parse(text).unwrap_err();
            assert_eq!(error, PortError { text: text.to_owned(), problem }, "{text}");
        }
    }
}
