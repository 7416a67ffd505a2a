//! What a template says of one container, put over what the workflow asked for.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, PodSecurityContext, SecurityContext};

use super::environment::{Environment, Sources};
use super::fault::{Fault, Place};
use super::parts::Wide;
use super::security::Contexts;
use super::{probes, resources};
use crate::bundle::{self, Dns, HostEntry, Namespace};
use crate::container::{Check, Health, Role, Stop};
use crate::container_hook::engine::backend::EngineBackend;
use crate::container_hook::engine::plan::LABEL;
use crate::container_hook::error::HookError;
use crate::container_hook::options::{
    CreateOptions, Namespace as HostNamespace, NetworkMode, Pull,
};
use crate::image::{CredentialFile, ImageConfig};
use crate::network::{PortMapping, Protocol};
use crate::runtime::Runtime;

/// What a template says of one container.
#[derive(Debug)]
pub(in crate::container_hook::engine) struct Overlay {
    /// What the container is for.
    pub(super) role: Role,
    /// What the template says, after what is given.
    pub(super) container: Container,
    /// How much of its lists the request gives.
    pub(super) given: Given,
    /// Where it is in the pod.
    pub(super) place: Place,
    /// What it says of the whole pod.
    pub(super) wide: Arc<Wide>,
}

/// How many items at the beginning of lists are not of the template.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Given {
    pub(super) env: usize,
    pub(super) mounts: usize,
    pub(super) ports: usize,
}

/// What is known when a container is about to be made.
#[derive(Clone, Copy, Debug)]
pub(in crate::container_hook::engine) struct Facts<'a> {
    /// What its image says.
    pub(in crate::container_hook::engine) image: &'a ImageConfig,
    /// Its addresses.
    pub(in crate::container_hook::engine) addresses: &'a [IpAddr],
    /// The host's address in its network.
    pub(in crate::container_hook::engine) host: Option<IpAddr>,
    /// Where the pod's volumes are; none as long as nothing is to be made.
    pub(in crate::container_hook::engine) volumes: Option<&'a Path>,
    /// The process whose process namespace it is in, if that is not one of its own.
    pub(in crate::container_hook::engine) process: Option<u32>,
}

impl<'a> Facts<'a> {
    /// Returns what is known before anything is made.
    pub(in crate::container_hook::engine) fn unknown(image: &'a ImageConfig) -> Self {
        Facts { image, addresses: &[], host: None, volumes: None, process: None }
    }
}

impl Overlay {
    /// Applies all that is part of the container's configuration.
    pub(in crate::container_hook::engine) fn apply(
        &self,
        backend: &EngineBackend<'_>,
        facts: &Facts<'_>,
        options: &mut bundle::Options,
    ) -> Result<(), HookError> {
        let sources =
            Sources { settings: &backend.context.settings.template, wide: &self.wide, facts };
        let container = (&self.container, self.given.env);
        let environment = Environment::new(&options.env, container, &self.place, sources)?;
        self.command(&environment, options)?;
        self.mounts(backend, facts, &environment, options)?;
        options.env.extend(environment.added);
        resources::apply(&self.container, &self.place, &mut options.resources)?;
        self.security(backend, facts, options)?;
        self.names(options)?;
        if let Some(pid) = facts.process {
            options.namespaces.pid = Namespace::Path(format!("/proc/{pid}/ns/pid").into());
        }
        let metadata = &self.wide.metadata;
        for (key, value) in metadata.labels.iter().flatten() {
            options.annotations.insert(format!("{LABEL}{key}"), value.clone());
        }
        // Keys of ours are faults, so this replaces none of them.
        options.annotations.extend(
            metadata.annotations.iter().flatten().map(|(key, value)| (key.clone(), value.clone())),
        );
        Ok(())
    }

    /// Sets what runs, and where. A container step has what the action says.
    fn command(
        &self,
        environment: &Environment,
        options: &mut bundle::Options,
    ) -> Result<(), Fault> {
        if self.role == Role::Step {
            return Ok(());
        }
        let words = |words: &[String]| words.iter().map(|word| environment.expand(word)).collect();
        // As for Docker, another program makes the arguments of the old one meaningless.
        if let Some(command) = self.container.command.as_deref().filter(|words| !words.is_empty()) {
            options.entrypoint = Some(words(command));
            options.args.clear();
        }
        if let Some(args) = &self.container.args {
            options.args = words(args);
        }
        if let Some(dir) = &self.container.working_dir {
            if !dir.starts_with('/') {
                return Err(self.place.at("workingDir").fault("has to be an absolute path"));
            }
            options.cwd = Some(dir.into());
        }
        Ok(())
    }

    /// Tells if the template says what the container runs.
    pub(in crate::container_hook::engine) fn runs_command(&self) -> bool {
        let says = |words: &Option<Vec<String>>| words.as_ref().is_some_and(|w| !w.is_empty());
        says(&self.container.command) || says(&self.container.args)
    }

    fn security(
        &self,
        backend: &EngineBackend<'_>,
        facts: &Facts<'_>,
        options: &mut bundle::Options,
    ) -> Result<(), Fault> {
        let none = (SecurityContext::default(), PodSecurityContext::default());
        let (own, pod) = (&self.container.security_context, &self.wide.spec.security_context);
        let place = self.wide.place.at("spec/securityContext");
        Contexts {
            container: (own.as_ref().unwrap_or(&none.0), &self.place.at("securityContext")),
            pod: (pod.as_ref().unwrap_or(&none.1), &place),
        }
        .apply(backend.context.settings, facts.image, options)
    }

    /// Sets the names of other hosts and where they are looked up.
    fn names(&self, options: &mut bundle::Options) -> Result<(), Fault> {
        let (spec, place) = (&self.wide.spec, self.wide.place.at("spec"));
        for (at, alias) in spec.host_aliases.iter().flatten().enumerate() {
            let address = alias.ip.parse().map_err(|_| {
                let problem = format!("{:?} is no address", alias.ip);
                place.at("hostAliases").item(at).at("ip").fault(problem)
            })?;
            let names = alias.hostnames.clone().unwrap_or_default();
            options.hosts.get_or_insert_default().push(HostEntry { address, names });
        }
        let leaves_out = match spec.dns_policy.as_deref() {
            Some("None") => true,
            None | Some("ClusterFirst" | "ClusterFirstWithHostNet" | "Default") => false,
            Some(other) => {
                let problem = format!("{other:?} is no policy");
                return Err(place.at("dnsPolicy").fault(problem));
            }
        };
        let config = spec.dns_config.clone().unwrap_or_default();
        let servers = config.nameservers.iter().flatten().enumerate().map(|(at, server)| {
            server.parse().map_err(|_| {
                let problem = format!("{server:?} is no address");
                place.at("dnsConfig/nameservers").item(at).fault(problem)
            })
        });
        let servers: Vec<IpAddr> = servers.collect::<Result<_, _>>()?;
        if leaves_out && servers.is_empty() {
            return Err(place.at("dnsPolicy").fault("needs `dnsConfig.nameservers`"));
        }
        let Some(dns) = &mut options.dns else { return Ok(()) };
        if leaves_out {
            *dns = Dns { host_files: Vec::new(), ..Dns::default() };
        } else if dns.servers.is_empty() {
            dns.append = true;
        }
        dns.servers.extend(servers);
        dns.search.extend(config.searches.into_iter().flatten());
        dns.options.extend(config.options.into_iter().flatten().map(|option| {
            let name = option.name.unwrap_or_default();
            option.value.map_or(name.clone(), |value| format!("{name}:{value}"))
        }));
        Ok(())
    }

    /// Returns the host name, and further names of the container's own address.
    pub(in crate::container_hook::engine) fn hostname(&self) -> Option<(String, Option<String>)> {
        if self.role == Role::Service {
            return None;
        }
        let spec = &self.wide.spec;
        let name = spec.hostname.clone()?;
        let full = spec.subdomain.as_ref().map(|domain| format!("{name}.{domain}"));
        Some(match full {
            Some(full) if spec.set_hostname_as_fqdn == Some(true) => (full, Some(name)),
            full => (name, full),
        })
    }

    /// Puts the container into namespaces of the host, if the policy allows that.
    pub(in crate::container_hook::engine) fn share_with_host(
        &self,
        backend: &EngineBackend<'_>,
        options: &mut CreateOptions,
    ) -> Result<(), Fault> {
        let spec = &self.wide.spec;
        for (field, asked, namespace) in [
            ("hostNetwork", spec.host_network, HostNamespace::Network),
            ("hostPID", spec.host_pid, HostNamespace::Pid),
            ("hostIPC", spec.host_ipc, HostNamespace::Ipc),
        ] {
            let is_network = namespace == HostNamespace::Network;
            if asked != Some(true) || (is_network && self.role == Role::Service) {
                continue;
            }
            if !backend.context.settings.policy.host_namespaces.contains(&namespace) {
                return Err(self.wide.place.at("spec").at(field).fault(format!(
                    "reaches into this machine: remove it, or set `host-namespaces = [{:?}]` \
                     under [policy] of the settings",
                    namespace.name()
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
    pub(in crate::container_hook::engine) fn ports(&self) -> Result<Vec<PortMapping>, Fault> {
        let mut ports = Vec::new();
        let all = self.container.ports.iter().flatten();
        for (at, port) in all.enumerate().skip(self.given.ports) {
            let place = self.place.at("ports").item(at);
            let number = |field: &str, number: i32| {
                let problem = format!("{number} is no port");
                let number = u16::try_from(number).ok().filter(|port| *port > 0);
                number.ok_or_else(|| place.at(field).fault(problem))
            };
            let container_port = number("containerPort", port.container_port)?;
            let protocol = match port.protocol.as_deref() {
                None | Some("TCP") => Protocol::Tcp,
                Some("UDP") => Protocol::Udp,
                Some(other) => {
                    return Err(place
                        .at("protocol")
                        .fault(format!("{other:?} is neither `TCP` nor `UDP`")));
                }
            };
            let Some(host_port) = port.host_port.filter(|port| *port != 0) else { continue };
            let host_port = number("hostPort", host_port)?;
            let host_ip = port.host_ip.as_ref().filter(|ip| !ip.is_empty()).map(|ip| {
                ip.parse().map_err(|_| place.at("hostIP").fault(format!("{ip:?} is no address")))
            });
            let (host_ip, host_ports) = (host_ip.transpose()?, Some(host_port..=host_port));
            ports.push(PortMapping { host_ip, host_ports, container_port, protocol });
        }
        Ok(ports)
    }

    /// Returns whether a registry is asked for the image, if the template says so.
    pub(in crate::container_hook::engine) fn pull(&self) -> Result<Option<Pull>, Fault> {
        match self.container.image_pull_policy.as_deref() {
            None => Ok(None),
            Some("Always") => Ok(Some(Pull::Always)),
            Some("IfNotPresent") => Ok(Some(Pull::Missing)),
            Some("Never") => Ok(Some(Pull::Never)),
            Some(other) => {
                Err(self.place.at("imagePullPolicy").fault(format!("{other:?} is no policy")))
            }
        }
    }

    /// Returns logins for registries.
    pub(in crate::container_hook::engine) fn logins(
        &self,
        backend: &EngineBackend<'_>,
    ) -> Result<Vec<CredentialFile>, Fault> {
        self.wide.logins(&backend.context.settings.template)
    }

    /// Returns what runs the container, if that is not what runs all others.
    pub(in crate::container_hook::engine) fn runtime(
        &self,
        backend: &EngineBackend<'_>,
    ) -> Result<Option<Runtime>, Fault> {
        let Some(class) = &self.wide.spec.runtime_class_name else { return Ok(None) };
        let Some(program) = backend.context.settings.template.runtime_classes.get(class) else {
            return Err(self.wide.place.at("spec/runtimeClassName").fault(format!(
                "{class:?} is not known: name its program under [template.runtime-classes] of the \
                 settings"
            )));
        };
        let own = &backend.engine.runtime;
        let runtime = Runtime::new(program.clone(), own.root.clone());
        Ok(Some(Runtime { systemd_cgroup: own.systemd_cgroup, ..runtime }))
    }

    /// Returns the checks that the container has to pass, if the template has any.
    pub(in crate::container_hook::engine) fn checks(
        &self,
        address: Option<IpAddr>,
    ) -> Result<Vec<Health>, Fault> {
        probes::checks(&self.container, &self.place, address)
    }

    /// Returns what is done once the container has started.
    pub(in crate::container_hook::engine) fn post_start(
        &self,
        address: Option<IpAddr>,
    ) -> Result<Option<Check>, Fault> {
        probes::post_start(&self.container, &self.place, address)
    }

    /// Returns how the container is ended; `signal` is the image's.
    pub(in crate::container_hook::engine) fn stop(
        &self,
        address: Option<IpAddr>,
        signal: Option<&str>,
    ) -> Result<Option<Stop>, Fault> {
        let grace_seconds = self.wide.spec.termination_grace_period_seconds;
        probes::stop(&self.container, &self.place, address, (grace_seconds, signal))
    }

    /// Returns the error of a `postStart` hook that failed.
    pub(in crate::container_hook::engine) fn post_start_failed(&self, how: &str) -> Fault {
        self.place.at("lifecycle/postStart").fault(how)
    }
}
