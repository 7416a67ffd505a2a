//! What a template adds to one container: read and checked once, when the container is planned, and put
//! into its options when its image and addresses are known.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::environment::{Addresses, Environment, Variable};
use super::mount_plan::MountPlan;
use super::probes::{Action, HealthPlan, StopPlan};
use super::security::User;
use crate::bundle::{self, Dns, HostEntry, Namespace};
use crate::container::{Check, Health, Stop};
use crate::container_hook::policy::Policy;
use crate::container_hook::template::{Fault, FieldPath};
use crate::image::{CredentialFile, ImageConfig};
use crate::runtime::Runtime;

/// What a template adds to one container; nothing without a template.
#[derive(Debug, Default)]
pub struct Additions {
    /// `command`, in which `$(NAME)` is not yet expanded.
    pub command: Option<Vec<String>>,
    /// `args`, in the same way.
    pub args: Option<Vec<String>>,
    pub working_dir: Option<PathBuf>,
    /// Whether the template says what the container runs.
    pub runs_command: bool,
    pub env: Vec<Variable>,
    pub mounts: Vec<MountPlan>,
    pub user: User,
    pub hosts: Vec<HostEntry>,
    /// None if there is no template.
    pub dns: Option<DnsChange>,
    pub annotations: BTreeMap<String, String>,
    pub hostname: Option<String>,
    /// Another name of the container's own address.
    pub second_hostname: Option<String>,
    /// None for that of all other containers.
    pub runtime: Option<Runtime>,
    pub logins: Vec<CredentialFile>,
    pub checks: Vec<HealthPlan>,
    pub post_start: Option<PostStart>,
    pub stop: Option<StopPlan>,
}

/// What changes where names are looked up.
#[derive(Clone, Debug, Default)]
pub struct DnsChange {
    pub replaces: bool,
    pub servers: Vec<IpAddr>,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

/// What is done once the container has started, and where the template says so.
#[derive(Debug)]
pub struct PostStart {
    pub action: Action,
    pub place: FieldPath,
}

/// What is known when a container is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub image: &'a ImageConfig,
    pub addresses: Addresses<'a>,
    pub policy: &'a Policy,
    /// The directory of the pod's volumes.
    pub volumes: &'a Path,
    /// The process whose process namespace it is in, if that is not one of its own.
    pub process: Option<u32>,
}

impl Additions {
    /// Puts everything that is part of the container's configuration over what the workflow asked for.
    pub fn apply(&self, facts: &Facts<'_>, options: &mut bundle::Options) -> Result<(), Fault> {
        let environment = Environment::new(&options.env, &self.env, facts.addresses);
        self.apply_command(&environment, options);
        for plan in &self.mounts {
            let mounts = plan.mounts(&environment, facts.volumes, facts.policy)?;
            // In place of what the workflow has at the same path.
            options.mounts.retain(|mount| !plan.is_at(&mount.target));
            options.mounts.extend(mounts);
        }
        options.env.extend(environment.added);
        self.user.apply(facts.image, options);
        self.apply_names(options);
        if let Some(pid) = facts.process {
            options.namespaces.pid = Namespace::Path(format!("/proc/{pid}/ns/pid").into());
        }
        // Keys of ours are faults, so this replaces none of them.
        options.annotations.extend(self.annotations.clone());
        Ok(())
    }

    fn apply_command(&self, environment: &Environment, options: &mut bundle::Options) {
        let words = |words: &[String]| words.iter().map(|word| environment.expand(word)).collect();
        // As for Docker, another program makes the arguments of the old one meaningless.
        if let Some(command) = &self.command {
            options.entrypoint = Some(words(command));
            options.args.clear();
        }
        if let Some(args) = &self.args {
            options.args = words(args);
        }
        if let Some(dir) = &self.working_dir {
            options.cwd = Some(dir.clone());
        }
    }

    /// Sets the names of other hosts and where they are looked up.
    fn apply_names(&self, options: &mut bundle::Options) {
        if !self.hosts.is_empty() {
            options.hosts.get_or_insert_default().extend(self.hosts.iter().cloned());
        }
        let (Some(dns), Some(change)) = (&mut options.dns, &self.dns) else { return };
        if change.replaces {
            *dns = Dns { host_files: Vec::new(), ..Dns::default() };
        } else if dns.servers.is_empty() {
            dns.append = true;
        }
        dns.servers.extend(&change.servers);
        dns.search.extend(change.search.iter().cloned());
        dns.options.extend(change.options.iter().cloned());
    }

    /// Returns the checks that the container has to pass.
    pub fn checks(&self, address: Option<IpAddr>) -> Vec<Health> {
        self.checks.iter().map(|check| check.at(address)).collect()
    }

    /// Returns what is done once the container has started.
    pub fn post_start(&self, address: Option<IpAddr>) -> Option<Check> {
        self.post_start.as_ref().map(|post_start| post_start.action.at(address))
    }

    /// Returns the error of a `postStart` hook that failed.
    pub fn post_start_failed(&self, how: &str) -> Option<Fault> {
        self.post_start.as_ref().map(|post_start| post_start.place.fault(how))
    }

    /// Returns how the container is ended; `signal` is the image's.
    pub fn stop(&self, address: Option<IpAddr>, signal: Option<&str>) -> Option<Stop> {
        self.stop.as_ref().map(|stop| stop.at(address, signal))
    }

    /// Returns the runner's directories that the container can write to.
    pub fn writable(&self) -> impl Iterator<Item = &Path> {
        self.mounts.iter().flat_map(MountPlan::writable)
    }
}
