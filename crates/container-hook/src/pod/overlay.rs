//! A template's fields of a container, applied over those of the workflow.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use container_hook_job::HookError;
use container_hook_job::options::{CreateOptions, HostNamespace, NetworkMode, PullOption};
use container_hook_job::plan::PlanRole;
use container_hook_job::policy::Policy;
use container_hook_job::runner::LABEL;
use container_hook_job::template::{FieldPath, TemplateFault};
use k8s_openapi::api::core::v1::{Container, PodSecurityContext, SecurityContext};
use oci_hooks_engine::bundle::{self, HostEntry};
use oci_hooks_engine::network::{PortMapping, PortProtocol};
use oci_hooks_engine::runtime::OciRuntime;

use super::additions::{DnsChange, PostStart, TemplateAdditions};
use super::environment::{ContainerEnvironment, PodAddresses, ValueSources};
use super::pod_fields::PodFields;
use super::security::{RunAsUser, SecurityContexts};
use super::{probes, resources};
use crate::backend::EngineBackend;

/// A template's fields of a container.
#[derive(Debug)]
pub struct ContainerOverlay {
    pub role: PlanRole,
    /// Container of the merged pod; its lists begin with the items of the request.
    pub container: Container,
    /// Number of items from the request in its lists.
    pub given: RequestItemCounts,
    /// Path of the container in the pod.
    pub place: FieldPath,
    pub pod: Arc<PodFields>,
}

/// The number of items at the beginning of each list that are not from the template.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestItemCounts {
    pub env: usize,
    pub mounts: usize,
    pub ports: usize,
}

impl ContainerOverlay {
    /// Reads and checks the template's fields of a container. Fields that need neither its image nor its addresses
    /// are set in `base`, over the workflow's options; the rest is returned.
    pub(crate) fn resolve(
        &self,
        backend: &EngineBackend<'_>,
        workflow_env: &[String],
        base: &mut bundle::BundleOptions,
    ) -> Result<TemplateAdditions, HookError> {
        let sources = ValueSources { settings: &backend.context.settings.template, pod: &self.pod };
        let env = sources.variables(&self.container, self.given.env, &self.place)?;
        let environment = ContainerEnvironment::new(workflow_env, &env, PodAddresses::default());
        // A container step runs the command of its action.
        let runs = (self.role != PlanRole::Step).then_some(&self.container);
        let command = runs.and_then(|container| container.command.clone());
        let working_dir = runs.map(|_| self.working_dir()).transpose()?.flatten();
        let mounts = self.mounts(backend, &environment)?;
        resources::apply(&self.container, &self.place, &mut base.resources)?;
        let user = self.security(backend, base)?;
        let (hostname, second_hostname) = self.hostname();
        let place = self.place.at("lifecycle/postStart");
        let post_start = probes::post_start(&self.container, &place)?;
        let grace_seconds = self.pod.spec.termination_grace_period_seconds;
        Ok(TemplateAdditions {
            command: command.filter(|words| !words.is_empty()),
            args: runs.and_then(|container| container.args.clone()),
            working_dir,
            runs_command: self.has_command(),
            env,
            mounts,
            user,
            hosts: self.hosts()?,
            dns: Some(self.dns()?),
            annotations: self.annotations(),
            hostname,
            second_hostname,
            checks: probes::checks(&self.container, &self.place)?,
            post_start: post_start.map(|action| PostStart { action, place }),
            stop: probes::stop(&self.container, &self.place, grace_seconds)?,
            runtime: self.runtime(backend)?,
            logins: self.pod.logins(&backend.context.settings.template)?,
        })
    }

    fn working_dir(&self) -> Result<Option<PathBuf>, TemplateFault> {
        let dir = self.container.working_dir.as_deref();
        if dir.is_some_and(|dir| !dir.starts_with('/')) {
            return Err(self.place.at("workingDir").fault("has to be an absolute path"));
        }
        Ok(dir.map(PathBuf::from))
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        let metadata = &self.pod.metadata;
        let labels = metadata.labels.iter().flatten();
        let labels = labels.map(|(key, value)| (format!("{LABEL}{key}"), value.clone()));
        let own = metadata.annotations.iter().flatten();
        labels.chain(own.map(|(key, value)| (key.clone(), value.clone()))).collect()
    }

    /// Returns whether the template sets the command or arguments of the container.
    pub(crate) fn has_command(&self) -> bool {
        let says = |words: &Option<Vec<String>>| words.as_ref().is_some_and(|w| !w.is_empty());
        says(&self.container.command) || says(&self.container.args)
    }

    /// Returns whether the template sets `allowPrivilegeEscalation`.
    pub(crate) fn sets_escalation(&self) -> bool {
        let context = self.container.security_context.as_ref();
        context.is_some_and(|context| context.allow_privilege_escalation.is_some())
    }

    fn security(
        &self,
        backend: &EngineBackend<'_>,
        base: &mut bundle::BundleOptions,
    ) -> Result<RunAsUser, TemplateFault> {
        let none = (SecurityContext::default(), PodSecurityContext::default());
        let (own, pod) = (&self.container.security_context, &self.pod.spec.security_context);
        let place = self.pod.place.at("spec/securityContext");
        SecurityContexts {
            container: (own.as_ref().unwrap_or(&none.0), &self.place.at("securityContext")),
            pod: (pod.as_ref().unwrap_or(&none.1), &place),
        }
        .apply(backend.context.settings, base)
    }

    /// Returns the `hostAliases`.
    fn hosts(&self) -> Result<Vec<HostEntry>, TemplateFault> {
        let place = self.pod.place.at("spec");
        let aliases = self.pod.spec.host_aliases.iter().flatten().enumerate();
        let hosts = aliases.map(|(at, alias)| {
            let address = alias.ip.parse().map_err(|_| {
                let problem = format!("{:?} is not an IP address", alias.ip);
                place.at("hostAliases").item(at).at("ip").fault(problem)
            })?;
            Ok(HostEntry { address, names: alias.hostnames.clone().unwrap_or_default() })
        });
        hosts.collect()
    }

    /// Returns the changes of `dnsPolicy` and `dnsConfig`.
    fn dns(&self) -> Result<DnsChange, TemplateFault> {
        let (spec, place) = (&self.pod.spec, self.pod.place.at("spec"));
        let replaces = match spec.dns_policy.as_deref() {
            Some("None") => true,
            None | Some("ClusterFirst" | "ClusterFirstWithHostNet" | "Default") => false,
            Some(other) => {
                let problem = format!(
                    "{other:?} is not a DNS policy: expected `None`, `Default`, `ClusterFirst` or \
                     `ClusterFirstWithHostNet`"
                );
                return Err(place.at("dnsPolicy").fault(problem));
            }
        };
        let config = spec.dns_config.clone().unwrap_or_default();
        let servers = config.nameservers.iter().flatten().enumerate().map(|(at, server)| {
            server.parse().map_err(|_| {
                let problem = format!("{server:?} is not an IP address");
                place.at("dnsConfig/nameservers").item(at).fault(problem)
            })
        });
        let servers: Vec<IpAddr> = servers.collect::<Result<_, _>>()?;
        if replaces && servers.is_empty() {
            return Err(place.at("dnsPolicy").fault("needs `dnsConfig.nameservers`"));
        }
        let options = config.options.into_iter().flatten().map(|option| {
            let name = option.name.unwrap_or_default();
            option.value.map_or(name.clone(), |value| format!("{name}:{value}"))
        });
        let search = config.searches.into_iter().flatten().collect();
        Ok(DnsChange { replaces, servers, search, options: options.collect() })
    }

    /// Returns the host name, and an additional name of the container's own address.
    fn hostname(&self) -> (Option<String>, Option<String>) {
        let spec = &self.pod.spec;
        let Some(name) = spec.hostname.clone().filter(|_| self.role != PlanRole::Service) else {
            return (None, None);
        };
        let full = spec.subdomain.as_ref().map(|domain| format!("{name}.{domain}"));
        match full {
            Some(full) if spec.set_hostname_as_fqdn == Some(true) => (Some(full), Some(name)),
            full => (Some(name), full),
        }
    }

    /// Puts the container into namespaces of the host, if the policy allows it.
    pub(crate) fn share_with_host(
        &self,
        policy: &Policy,
        options: &mut CreateOptions,
    ) -> Result<(), TemplateFault> {
        let spec = &self.pod.spec;
        for (field, asked, namespace) in [
            ("hostNetwork", spec.host_network, HostNamespace::Network),
            ("hostPID", spec.host_pid, HostNamespace::Pid),
            ("hostIPC", spec.host_ipc, HostNamespace::Ipc),
        ] {
            let is_network = namespace == HostNamespace::Network;
            if asked != Some(true) || (is_network && self.role == PlanRole::Service) {
                continue;
            }
            if !policy.host_namespaces.contains(&namespace) {
                return Err(self.pod.place.at("spec").at(field).fault(format!(
                    "gives containers a namespace of this machine: remove it, or set `host-namespaces = [{:?}]` \
                     under {}",
                    namespace.name(),
                    policy.section("policy")
                )));
            }
            if is_network {
                options.network.mode = NetworkMode::Host;
            } else {
                options.host_namespaces.insert(namespace);
            }
        }
        Ok(())
    }

    /// Returns the ports to publish.
    pub(crate) fn ports(&self) -> Result<Vec<PortMapping>, TemplateFault> {
        let mut ports = Vec::new();
        let all = self.container.ports.iter().flatten();
        for (at, port) in all.enumerate().skip(self.given.ports) {
            let place = self.place.at("ports").item(at);
            let number = |field: &str, number: i32| {
                let problem = format!("{number} is not a port: expected 1 to 65535");
                let number = u16::try_from(number).ok().filter(|port| *port > 0);
                number.ok_or_else(|| place.at(field).fault(problem))
            };
            let container_port = number("containerPort", port.container_port)?;
            let protocol = match port.protocol.as_deref() {
                None | Some("TCP") => PortProtocol::Tcp,
                Some("UDP") => PortProtocol::Udp,
                Some(other) => {
                    return Err(place
                        .at("protocol")
                        .fault(format!("{other:?} is neither `TCP` nor `UDP`")));
                }
            };
            let Some(host_port) = port.host_port.filter(|port| *port != 0) else { continue };
            let host_port = number("hostPort", host_port)?;
            let host_ip = port.host_ip.as_ref().filter(|ip| !ip.is_empty()).map(|ip| {
                ip.parse()
                    .map_err(|_| place.at("hostIP").fault(format!("{ip:?} is not an IP address")))
            });
            let (host_ip, host_ports) = (host_ip.transpose()?, Some(host_port..=host_port));
            ports.push(PortMapping { host_ip, host_ports, container_port, protocol });
        }
        Ok(ports)
    }

    /// Returns the pull policy, if the template sets it.
    pub(crate) fn pull(&self) -> Result<Option<PullOption>, TemplateFault> {
        match self.container.image_pull_policy.as_deref() {
            None => Ok(None),
            Some("Always") => Ok(Some(PullOption::Always)),
            Some("IfNotPresent") => Ok(Some(PullOption::Missing)),
            Some("Never") => Ok(Some(PullOption::Never)),
            Some(other) => {
                let problem = format!(
                    "{other:?} is not a pull policy: expected `Always`, `IfNotPresent` or `Never`"
                );
                Err(self.place.at("imagePullPolicy").fault(problem))
            }
        }
    }

    /// Returns the runtime of `runtimeClassName`; none for the default runtime.
    pub(crate) fn runtime(
        &self,
        backend: &EngineBackend<'_>,
    ) -> Result<Option<OciRuntime>, TemplateFault> {
        let Some(class) = &self.pod.spec.runtime_class_name else { return Ok(None) };
        let Some(program) = backend.context.settings.template.runtime_classes.get(class) else {
            return Err(self.pod.place.at("spec/runtimeClassName").fault(format!(
                "unknown runtime class {class:?}: name its program under [template.runtime-classes] of the \
                 settings"
            )));
        };
        let own = &backend.engine.runtime;
        let runtime = OciRuntime::new(program.clone(), own.root.clone());
        Ok(Some(OciRuntime { systemd_cgroup: own.systemd_cgroup, ..runtime }))
    }
}
