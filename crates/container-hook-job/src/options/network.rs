//! Options about the network, host names and ports.

use std::net::IpAddr;

use super::CreateOptions;
use super::create_options::{AddedHost, ExposedPort, HostAddress, NetworkMode};

pub(super) fn network(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    if !value.contains('=') {
        options.network.mode = mode(value)?;
        return Ok(());
    }
    for field in super::value::csv(value)? {
        match field.split_once('=') {
            Some(("name", name)) => options.network.mode = mode(name)?,
            Some(("alias", name)) => options.network.aliases.push(host_name(name)?),
            _ => return Err(format!("{field:?} is not supported: expected name or alias")),
        }
    }
    Ok(())
}

fn mode(name: &str) -> Result<NetworkMode, String> {
    match name {
        "host" => Ok(NetworkMode::Host),
        "none" => Ok(NetworkMode::None),
        _ => {
            Err("Docker networks are not supported: leave the option out for the job's network, or use \
                 `host` or `none`"
                .to_owned())
        }
    }
}

/// Checks a name that will be written to `/etc/hosts`.
pub fn host_name(name: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if !starts || !name.chars().all(allowed) || name.len() > 253 {
        return Err("a host name consists of letters, digits, `-`, `_` and `.`, at most 253, and does not begin with `-` or `.`".to_owned());
    }
    Ok(name.to_owned())
}

pub(super) fn added_host(value: &str) -> Result<AddedHost, String> {
    // `=` first: an IPv6 address is full of colons.
    let Some((name, address)) = value.split_once('=').or_else(|| value.split_once(':')) else {
        return Err("must be NAME:ADDRESS".to_owned());
    };
    let bare = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
    let address = match bare {
        "host-gateway" => HostAddress::Gateway,
        _ => HostAddress::Address(bare.parse().map_err(|_| {
            "the part after the name must be an IP address or host-gateway".to_owned()
        })?),
    };
    Ok(AddedHost { name: host_name(name)?, address })
}

pub(super) fn address(value: &str) -> Result<IpAddr, String> {
    value.trim().parse().map_err(|_| "must be an IP address".to_owned())
}

pub(super) fn search_domain(value: &str) -> Result<String, String> {
    match value.trim() {
        "." => Ok(".".to_owned()),
        domain => host_name(domain.trim_end_matches('.')),
    }
}

/// Checks a word that will be written to `/etc/resolv.conf`.
pub(super) fn resolver_word(word: &str) -> Result<String, String> {
    if word.is_empty() || !word.chars().all(|c| c.is_ascii_graphic()) {
        return Err("must be one word of printable ASCII characters".to_owned());
    }
    Ok(word.to_owned())
}

pub(super) fn publish(value: &str) -> Result<String, String> {
    Ok(value.to_owned())
}

pub(super) fn expose(options: &mut CreateOptions, value: &str) -> Result<(), String> {
    let (ports, protocol) = value.split_once('/').unwrap_or((value, "tcp"));
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "tcp" | "" => "tcp",
        "udp" => "udp",
        "sctp" => "sctp",
        _ => return Err("the protocol must be tcp, udp or sctp".to_owned()),
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port =
        |text: &str| text.parse::<u16>().map_err(|_| "must be PORT[-PORT][/PROTOCOL]".to_owned());
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err("the last port of the range is lower than the first".to_owned());
    }
    for port in first..=last {
        let exposed = ExposedPort { port, protocol };
        if !options.network.expose.contains(&exposed) {
            options.network.expose.push(exposed);
        }
    }
    Ok(())
}
