//! Ports of containers, in a pod.
//!
//! The containers of a pod share their ports: one that a container listens on is reached by itself, whatever
//! port of the host the workflow named. Only if the admin wants that the node has that port, too.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ContainerPort;

use super::error::PodError;
use crate::container_hook::kubernetes::settings::KubernetesSettings;
use crate::container_hook::options::ExposedPort;
use crate::network::{PortError, PortMapping};

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    number: u16,
    /// `TCP`, `UDP` or `SCTP`.
    protocol: String,
    /// The port of the host, and its address, if the workflow names them.
    host: Option<u16>,
    host_ip: Option<String>,
    /// Whether workflows are told of it.
    is_published: bool,
}

impl Port {
    /// Reads what `-p` takes. Other than a machine, a pod has SCTP.
    pub fn parse(text: &str) -> Result<Vec<Self>, PortError> {
        let (text, is_sctp) = match text.strip_suffix("/sctp") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let ports = PortMapping::parse(text)?.into_iter().map(|port| Port {
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

    pub(super) fn exposed(port: &ExposedPort) -> Self {
        let ExposedPort { port: number, protocol } = port;
        let protocol = protocol.to_uppercase();
        Port { number: *number, protocol, host: None, host_ip: None, is_published: false }
    }

    fn of_pod(&self, settings: &KubernetesSettings) -> ContainerPort {
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

/// Returns the ports of a container as a pod has them, each once.
pub fn of_pod(settings: &KubernetesSettings, ports: &[Port]) -> Option<Vec<ContainerPort>> {
    let mut all: Vec<ContainerPort> = Vec::new();
    for port in ports {
        let port = port.of_pod(settings);
        let is_same = |other: &&mut ContainerPort| {
            other.container_port == port.container_port && other.protocol == port.protocol
        };
        match all.iter_mut().find(is_same) {
            // One with a port of the host says more.
            Some(known) if known.host_port.is_none() => *known = port,
            Some(known) if port.host_port.is_none() || known.host_port == port.host_port => {}
            _ => all.push(port),
        }
    }
    (!all.is_empty()).then_some(all)
}

/// Returns the port to connect to for each published one of a container, without protocols: the runner has no
/// place for them.
pub fn published(settings: &KubernetesSettings, ports: &[Port]) -> BTreeMap<String, String> {
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

/// Which container listens on a port.
#[derive(Default)]
pub struct Listeners(BTreeMap<(u16, String), String>);

impl Listeners {
    /// Takes the ports of a container.
    ///
    /// # Errors
    ///
    /// Fails if another container has one of them.
    pub fn add(&mut self, title: &str, ports: &[Port]) -> Result<(), PodError> {
        for port in ports {
            let key = (port.number, port.protocol.clone());
            match self.0.get(&key) {
                Some(first) if first != title => {
                    return Err(PodError::SamePort {
                        first: first.clone(),
                        second: title.to_owned(),
                        port: format!("{}/{}", port.number, port.protocol.to_lowercase()),
                    });
                }
                _ => {
                    self.0.insert(key, title.to_owned());
                }
            }
        }
        Ok(())
    }

    /// Returns a line for each port that an image says it serves and another container has: it may not use it.
    pub fn served(&self, title: &str, image_ports: &[String]) -> Vec<String> {
        let clashes = image_ports.iter().filter_map(|text| {
            let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
            let key = (number.parse().ok()?, protocol.to_uppercase());
            let first = self.0.get(&key).filter(|first| *first != title)?;
            Some(format!(
                "{first} and {title} may both use the port {number}/{protocol}, by what their images say: \
                 the containers of a job share one network in a cluster"
            ))
        });
        clashes.collect()
    }

    /// Takes the ports that an image says it serves, where nobody has them.
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

    fn ports(texts: &[&str]) -> Vec<Port> {
        texts.iter().flat_map(|text| Port::parse(text).unwrap()).collect()
    }

    #[test]
    fn ports_are_reached_by_themselves_unless_the_node_has_them() {
        let settings = KubernetesSettings::default();
        let all = ports(&["6379", "31379:6379/tcp", "127.0.0.1:82:82/udp", "9:9/sctp"]);
        let made = of_pod(&settings, &all).unwrap();
        assert!(made.iter().all(|port| port.host_port.is_none() && port.host_ip.is_none()));
        let numbers: Vec<_> = made.iter().map(|port| port.container_port).collect();
        assert_eq!(numbers, [6379, 82, 9]);
        assert_eq!(published(&settings, &all)["6379"], "6379");
        let settings = KubernetesSettings { host_ports: true, ..settings };
        let made = of_pod(&settings, &all).unwrap();
        assert_eq!(made[0].host_port, Some(31379));
        assert_eq!((made[1].host_ip.as_deref(), made[1].host_port), (Some("127.0.0.1"), Some(82)));
        assert_eq!(published(&settings, &all)["6379"], "31379");
        assert_eq!(of_pod(&settings, &[]), None);
    }

    #[test]
    fn two_containers_with_one_port_are_named() {
        let mut listeners = Listeners::default();
        listeners.add("service a", &ports(&["80:5432", "5432", "53/udp"])).unwrap();
        listeners.add("service b", &ports(&["53", "1234:80"])).unwrap();
        let error = listeners.add("service c", &ports(&["99:5432"])).unwrap_err().to_string();
        assert!(error.starts_with("service a and service c both use the port 5432/tcp"), "{error}");
        let served = ["5432/tcp".to_owned(), "x".to_owned(), "7/tcp".to_owned()];
        assert_eq!(listeners.served("service d", &served).len(), 1);
        assert!(listeners.served("service a", &served).is_empty());
    }
}
