//! Options of containers that apply to the whole pod.

use std::collections::BTreeMap;

use container_hook_job::HookError;
use container_hook_job::options::{HostAddress, HostNamespace, NetworkMode};
use container_hook_job::plan::PlanRole;
use container_hook_job::runner::LABEL;
use k8s_openapi::api::core::v1::{
    HostAlias, Pod, PodDNSConfig, PodDNSConfigOption, PodSpec, Sysctl,
};
use oci_hooks_image::Platform;

use super::error::PodError;
use super::options::id;
use super::requested::RequestedContainer;
use super::{hosts, names};

/// Address of services, for containers of the same pod.
const LOOPBACK: &str = "127.0.0.1";

/// Options that apply to the whole pod, collected from its containers. Each value in `sysctls` and
/// `node_selector` is stored with the title of the container that sets it, for error messages.
#[derive(Default)]
pub struct PodWide {
    hostname: Option<String>,
    groups: Vec<i64>,
    /// Addresses with host names, without duplicates.
    hosts: Vec<(String, String)>,
    /// Addresses with host names that `hostAliases` rejects.
    non_dns_hosts: Vec<(String, String)>,
    dns: PodDNSConfig,
    sysctls: BTreeMap<String, (String, String)>,
    node_selector: BTreeMap<String, (String, String)>,
    annotations: BTreeMap<String, String>,
    shares_network: bool,
    shares_processes: bool,
    shares_ipc: bool,
    /// Notes for the author of the workflow.
    pub notes: Vec<String>,
}

impl PodWide {
    /// Adds the host names of a service, and the node labels.
    pub fn add(&mut self, asked: &RequestedContainer<'_>) -> Result<(), HookError> {
        if asked.role == PlanRole::Service {
            for name in &asked.names {
                self.host(LOOPBACK, name);
            }
        }
        for (label, value) in &asked.node_selector {
            self.set_selector("--label node-selector.", label, value, &asked.title)?;
        }
        Ok(())
    }

    /// Adds the names of a job's services, with the address of the job's pod.
    pub fn services_of(&mut self, job: &Pod) {
        let address = job.status.as_ref().and_then(|status| status.pod_ip.as_deref());
        let aliases = job.spec.as_ref().and_then(|spec| spec.host_aliases.as_deref());
        let of_services = aliases.unwrap_or_default().iter().filter(|alias| alias.ip == LOOPBACK);
        let odd = job.metadata.annotations.as_ref().and_then(|all| all.get(&hosts::annotation()));
        let odd =
            odd.into_iter().flat_map(|names| names.split(' ')).filter(|name| !name.is_empty());
        let names = of_services.flat_map(|alias| alias.hostnames.iter().flatten());
        for name in names.map(String::as_str).chain(odd) {
            self.host(address.unwrap_or(LOOPBACK), name);
        }
    }

    /// Adds a host name of letters, digits, `-`, `_` and `.`.
    pub fn host(&mut self, address: &str, name: &str) {
        let (list, name) = match names::host(name) {
            Some(name) => (&mut self.hosts, name),
            None => (&mut self.non_dns_hosts, name.to_owned()),
        };
        let host = (address.to_owned(), name);
        if !list.contains(&host) {
            list.push(host);
        }
    }

    /// Takes the host names that `hostAliases` rejects, with their addresses.
    pub fn take_odd_hosts(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.non_dns_hosts)
    }

    pub(super) fn groups(
        asked: &RequestedContainer<'_>,
        pod: &mut PodWide,
    ) -> Result<(), HookError> {
        for group in &asked.options.groups {
            let group = id("--group-add", group)?;
            if !pod.groups.contains(&group) {
                pod.groups.push(group);
            }
        }
        Ok(())
    }

    /// Sets the pod's host name, except for services, whose host name is among their names.
    pub fn hostname(asked: &RequestedContainer<'_>, pod: &mut PodWide) -> Result<(), HookError> {
        let Some(name) =
            asked.options.hostname.as_deref().filter(|_| asked.role != PlanRole::Service)
        else {
            return Ok(());
        };
        pod.hostname = names::host(name).filter(|name| !name.contains('.') && name.len() <= 63);
        if pod.hostname.is_none() {
            pod.notes.push(format!(
                "{}: --hostname {name} has no effect: the host name of a pod may have only letters, digits \
                 and `-`, at most 63 characters",
                asked.title
            ));
        }
        Ok(())
    }

    pub(super) fn hosts(
        asked: &RequestedContainer<'_>,
        pod: &mut PodWide,
    ) -> Result<(), HookError> {
        for host in &asked.options.network.hosts {
            match host.address {
                HostAddress::Address(address) => {
                    pod.host(&address.to_string(), &host.name);
                }
                HostAddress::Gateway => pod.notes.push(format!(
                    "{}: --add-host {}:host-gateway has no effect: the address of the pod's node is \
                     unknown when the pod is created",
                    asked.title, host.name
                )),
            }
        }
        Ok(())
    }

    pub(super) fn dns(asked: &RequestedContainer<'_>, pod: &mut PodWide) -> Result<(), HookError> {
        let network = &asked.options.network;
        let servers = network.dns.iter().map(ToString::to_string);
        extend(&mut pod.dns.nameservers, servers);
        let domains = network.dns_search.iter().filter(|domain| *domain != ".").cloned();
        extend(&mut pod.dns.searches, domains);
        let options = network.dns_options.iter().map(|option| {
            let (name, value) = match option.split_once(':') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option.as_str(), None),
            };
            PodDNSConfigOption { name: Some(name.to_owned()), value }
        });
        extend(&mut pod.dns.options, options);
        Ok(())
    }

    pub(super) fn sysctls(
        asked: &RequestedContainer<'_>,
        pod: &mut PodWide,
    ) -> Result<(), HookError> {
        for (name, value) in &asked.options.sysctls {
            set_agreed(&mut pod.sysctls, "--sysctl ", name, value, &asked.title)?;
        }
        Ok(())
    }

    pub(super) fn namespaces(
        asked: &RequestedContainer<'_>,
        pod: &mut PodWide,
    ) -> Result<(), HookError> {
        let shared = &asked.options.host_namespaces;
        pod.shares_processes |= shared.contains(&HostNamespace::Pid);
        pod.shares_ipc |= shared.contains(&HostNamespace::Ipc);
        pod.shares_network |= asked.options.network.mode == NetworkMode::Host
            || shared.contains(&HostNamespace::Network);
        Ok(())
    }

    /// Selects nodes of the platform: a node pulls images for its own platform.
    pub fn platform(asked: &RequestedContainer<'_>, pod: &mut PodWide) -> Result<(), HookError> {
        let Some(text) = &asked.options.platform else { return Ok(()) };
        let platform: Platform = text.parse().map_err(HookError::Platform)?;
        pod.set_selector(
            "--platform, ",
            "kubernetes.io/os",
            &platform.os.to_string(),
            &asked.title,
        )?;
        pod.set_selector(
            "--platform, ",
            "kubernetes.io/arch",
            &platform.architecture.to_string(),
            &asked.title,
        )?;
        Ok(())
    }

    pub(super) fn annotations(
        asked: &RequestedContainer<'_>,
        pod: &mut PodWide,
    ) -> Result<(), HookError> {
        let labels = asked.options.labels.iter();
        let labels = labels.map(|(key, value)| (format!("{LABEL}{key}"), value));
        let others = asked.options.annotations.iter().map(|(key, value)| (key.clone(), value));
        for (key, value) in labels.chain(others) {
            if names::is_annotation(&key) {
                pod.annotations.entry(key).or_insert_with(|| value.clone());
            } else {
                pod.notes.push(format!(
                    "{}: the label or annotation {key:?} is left out: it is not a valid key of a pod annotation",
                    asked.title
                ));
            }
        }
        Ok(())
    }

    fn set_selector(
        &mut self,
        field: &'static str,
        label: &str,
        value: &str,
        title: &str,
    ) -> Result<(), HookError> {
        set_agreed(&mut self.node_selector, field, label, value, title)
    }

    /// Applies the options to a pod, except where the template has set a field.
    pub fn apply(&mut self, pod: &mut Pod) {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        for (key, value) in std::mem::take(&mut self.annotations) {
            annotations.entry(key).or_insert(value);
        }
        let odd = self.non_dns_hosts.iter().filter(|(address, _)| address == LOOPBACK);
        let odd: Vec<_> = odd.map(|(_, name)| name.as_str()).collect();
        if !odd.is_empty() {
            annotations.insert(hosts::annotation(), odd.join(" "));
        }
        let Some(spec) = &mut pod.spec else { return };
        spec.hostname = spec.hostname.take().or(self.hostname.take());
        let shares = |is_asked: bool, said: Option<bool>| said.or(is_asked.then_some(true));
        spec.host_network = shares(self.shares_network, spec.host_network);
        spec.host_pid = shares(self.shares_processes, spec.host_pid);
        spec.host_ipc = shares(self.shares_ipc, spec.host_ipc);
        for (label, (value, _)) in std::mem::take(&mut self.node_selector) {
            spec.node_selector.get_or_insert_default().entry(label).or_insert(value);
        }
        for (address, name) in std::mem::take(&mut self.hosts) {
            add_host(spec, address, name);
        }
        if self.dns != PodDNSConfig::default() && spec.dns_config.is_none() {
            // Like Docker: only these servers are asked.
            if self.dns.nameservers.is_some() && spec.dns_policy.is_none() {
                spec.dns_policy = Some("None".to_owned());
            }
            spec.dns_config = Some(std::mem::take(&mut self.dns));
        }
        if !self.groups.is_empty() || !self.sysctls.is_empty() {
            let context = spec.security_context.get_or_insert_default();
            extend(&mut context.supplemental_groups, self.groups.drain(..));
            let sysctls = std::mem::take(&mut self.sysctls).into_iter();
            extend(&mut context.sysctls, sysctls.map(|(name, (value, _))| Sysctl { name, value }));
        }
    }
}

/// Adds a host name to a pod, unless it already has the name.
fn add_host(spec: &mut PodSpec, address: String, name: String) {
    let aliases = spec.host_aliases.get_or_insert_default();
    let has = |alias: &HostAlias| alias.hostnames.iter().flatten().any(|known| *known == name);
    if aliases.iter().any(has) {
        return;
    }
    match aliases.iter_mut().find(|alias| alias.ip == address) {
        Some(alias) => alias.hostnames.get_or_insert_default().push(name),
        None => aliases.push(HostAlias { ip: address, hostnames: Some(vec![name]) }),
    }
}

/// Appends the missing items to a list; without items, `None` stays `None`.
fn extend<T: PartialEq>(list: &mut Option<Vec<T>>, items: impl Iterator<Item = T>) {
    for item in items {
        let list = list.get_or_insert_default();
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

/// Sets a value, unless another container has set a different one.
fn set_agreed(
    values: &mut BTreeMap<String, (String, String)>,
    field: &'static str,
    key: &str,
    value: &str,
    title: &str,
) -> Result<(), HookError> {
    match values.get(key) {
        Some((known, first)) if known != value => {
            let field = format!("{field}{key}");
            let first = format!("{first} ({known:?})");
            let second = format!("{title} ({value:?})");
            Err(PodError::Different { field, first, second }.into())
        }
        _ => {
            values.insert(key.to_owned(), (value.to_owned(), title.to_owned()));
            Ok(())
        }
    }
}
