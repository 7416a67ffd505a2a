//! Ports of containers in a pod.
//!
//! The containers of a pod share a network: a port is reached by its own number, whatever host port the
//! workflow names. The node's port is only mapped if the admin permits it.

use std::collections::BTreeMap;

use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::options::ExposedPort;
use k8s_openapi::api::core::v1::ContainerPort;
use oci_hooks_engine::network::{PortError, PortMapping};

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPort {
    number: u16,
    /// `TCP`, `UDP` or `SCTP`.
    protocol: String,
    /// Port of the host, if the workflow names one.
    host: Option<u16>,
    /// Address of the host, if the workflow names one.
    host_ip: Option<String>,
    /// If set, the port is reported to workflows.
    is_published: bool,
}

impl PodPort {
    /// Parses the value of `-p`. Unlike on a single host, SCTP is supported.
    pub fn parse(text: &str) -> Result<Vec<Self>, PortError> {
        let (text, is_sctp) = match text.strip_suffix("/sctp") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let ports = PortMapping::parse(text)?.into_iter().map(|port| PodPort {
            number: port.container_port,
            protocol: match is_sctp {
                true => "SCTP".to_owned(),
                false => port.protocol.to_string().to_uppercase(),
            },
            host: port.host_ports.map(|range| *range.start()),
            host_ip: port.host_ip.map(|ip| ip.to_string()),
            is_published: true,
        });
        Ok(ports.collect())
    }

    pub(super) fn from_exposed(port: &ExposedPort) -> Self {
        let ExposedPort { port: number, protocol } = port;
        let protocol = protocol.to_uppercase();
        PodPort { number: *number, protocol, host: None, host_ip: None, is_published: false }
    }

    fn to_container_port(&self, settings: &KubernetesSettings) -> ContainerPort {
        let of_host = settings.host_ports && self.host.is_some();
        ContainerPort {
            container_port: self.number.into(),
            host_port: self.host.filter(|_| of_host).map(Into::into),
            host_ip: self.host_ip.clone().filter(|_| of_host),
            protocol: Some(self.protocol.clone()),
            ..ContainerPort::default()
        }
    }
}

/// Returns the ports in the manifest's form, without duplicates; `None` if there are no ports.
pub fn to_container_ports(
    settings: &KubernetesSettings,
    ports: &[PodPort],
) -> Option<Vec<ContainerPort>> {
    let mut all: Vec<ContainerPort> = Vec::new();
    for port in ports {
        let port = port.to_container_port(settings);
        let is_same = |other: &&mut ContainerPort| {
            other.container_port == port.container_port && other.protocol == port.protocol
        };
        match all.iter_mut().find(is_same) {
            // An entry with a host port replaces one without.
            Some(known) if known.host_port.is_none() => *known = port,
            Some(known) if port.host_port.is_none() || known.host_port == port.host_port => {}
            _ => all.push(port),
        }
    }
    (!all.is_empty()).then_some(all)
}

/// Returns the port to connect to for each published port of a container. Protocols are omitted: the runner's
/// response has no field for them.
pub fn published_ports(
    settings: &KubernetesSettings,
    ports: &[PodPort],
) -> BTreeMap<String, String> {
    let mut published = BTreeMap::new();
    for port in ports.iter().filter(|port| port.is_published) {
        let host = port.host.filter(|_| settings.host_ports);
        let shown = host.unwrap_or(port.number).to_string();
        if host.is_some() {
            published.insert(port.number.to_string(), shown);
        } else {
            published.entry(port.number.to_string()).or_insert(shown);
        }
    }
    published
}

/// The listening container of each port.
#[derive(Default)]
pub struct PortListeners(BTreeMap<(u16, String), String>);

impl PortListeners {
    /// Adds the ports of a container; returns a warning for each port of another container.
    pub fn add(&mut self, title: &str, ports: &[PodPort]) -> Vec<String> {
        let mut warnings = Vec::new();
        for port in ports {
            let key = (port.number, port.protocol.clone());
            match self.0.get(&key) {
                Some(first) if first != title => warnings.push(format!(
                    "{first} and {title} both name the port {}/{}: the containers of a job share one network \
                     in a cluster, so only one of them can listen on it",
                    port.number,
                    port.protocol.to_lowercase()
                )),
                _ => {
                    self.0.insert(key, title.to_owned());
                }
            }
        }
        warnings
    }

    /// Returns a warning for each port that an image exposes and another container uses; the image may not
    /// use it.
    pub fn port_warnings(&self, title: &str, image_ports: &[String]) -> Vec<String> {
        let clashes = image_ports.iter().filter_map(|text| {
            let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
            let key = (number.parse().ok()?, protocol.to_uppercase());
            let first = self.0.get(&key).filter(|first| *first != title)?;
            Some(format!(
                "{first} and {title} may both use the port {number}/{protocol}, which the image of {title} \
                 exposes: the containers of a job share one network in a cluster, so only one of them can listen \
                 on it"
            ))
        });
        clashes.collect()
    }

    /// Adds the ports that an image exposes, unless another container has them.
    pub fn add_served(&mut self, title: &str, image_ports: &[String]) {
        for text in image_ports {
            let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
            if let Ok(number) = number.parse() {
                let key = (number, protocol.to_uppercase());
                self.0.entry(key).or_insert_with(|| title.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(texts: &[&str]) -> Vec<PodPort> {
        texts.iter().flat_map(|text| PodPort::parse(text).unwrap()).collect()
    }

    #[test]
    fn ports_map_to_themselves_except_host_ports() {
        let settings = KubernetesSettings::default();
        let all = ports(&["6379", "31379:6379/tcp", "127.0.0.1:82:82/udp", "9:9/sctp"]);
        let made = to_container_ports(&settings, &all).unwrap();
        assert!(made.iter().all(|port| port.host_port.is_none() && port.host_ip.is_none()));
        let numbers: Vec<_> = made.iter().map(|port| port.container_port).collect();
        assert_eq!(numbers, [6379, 82, 9]);
        assert_eq!(published_ports(&settings, &all)["6379"], "6379");
        let settings = KubernetesSettings { host_ports: true, ..settings };
        let made = to_container_ports(&settings, &all).unwrap();
        assert_eq!(made[0].host_port, Some(31379));
        assert_eq!((made[1].host_ip.as_deref(), made[1].host_port), (Some("127.0.0.1"), Some(82)));
        assert_eq!(published_ports(&settings, &all)["6379"], "31379");
        assert_eq!(to_container_ports(&settings, &[]), None);
    }

    #[test]
    fn conflicting_ports_name_both_containers() {
        let mut listeners = PortListeners::default();
        let first = listeners.add("service a", &ports(&["80:5432", "5432", "53/udp"]));
        let second = listeners.add("service b", &ports(&["53", "1234:80"]));
        assert!(first.is_empty() && second.is_empty(), "{first:?} {second:?}");
        let warnings = listeners.add("service c", &ports(&["99:5432"]));
        let start = "service a and service c both name the port 5432/tcp";
        assert!(warnings.len() == 1 && warnings[0].starts_with(start), "{warnings:?}");
        let served = ["5432/tcp".to_owned(), "x".to_owned(), "7/tcp".to_owned()];
        assert_eq!(listeners.port_warnings("service d", &served).len(), 1);
        assert!(listeners.port_warnings("service a", &served).is_empty());
    }
}
