//! The template's additions to a container: read and checked once, when the container is planned, and put into its
//! options when its image and addresses are known.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use container_hook_job::policy::Policy;
use container_hook_job::template::{FieldPath, TemplateFault};
use oci_hooks_engine::bundle::{self, HostEntry, NamespaceSource, ResolverOptions};
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_image::{CredentialFile, ImageConfig};

use super::environment::{ContainerEnvironment, PodAddresses, TemplateEnvVar};
use super::mount_plan::MountPlan;
use super::probes::{HealthPlan, ProbeAction, StopPlan};
use super::security::RunAsUser;
use crate::plan::LaunchContext;

/// The template's additions to a container; empty without a template.
#[derive(Debug, Default)]
pub struct TemplateAdditions {
    /// `command`, in which `$(NAME)` is not yet expanded.
    pub command: Option<Vec<String>>,
    /// `args`, in which `$(NAME)` is not yet expanded.
    pub args: Option<Vec<String>>,
    pub working_dir: Option<PathBuf>,
    /// Set if the template sets the command or arguments of the container.
    pub runs_command: bool,
    pub env: Vec<TemplateEnvVar>,
    pub mounts: Vec<MountPlan>,
    pub user: RunAsUser,
    pub hosts: Vec<HostEntry>,
    /// Changes to `/etc/resolv.conf`; none without a template.
    pub dns: Option<DnsChange>,
    pub annotations: BTreeMap<String, String>,
    pub hostname: Option<String>,
    /// Additional name of the container's own address.
    pub second_hostname: Option<String>,
    /// Runtime of `runtimeClassName`; none for the default runtime.
    pub runtime: Option<OciRuntime>,
    pub logins: Vec<CredentialFile>,
    pub checks: Vec<HealthPlan>,
    pub post_start: Option<PostStart>,
    pub stop: Option<StopPlan>,
}

/// Changes to the container's `/etc/resolv.conf`.
#[derive(Clone, Debug, Default)]
pub struct DnsChange {
    /// Set for `dnsPolicy: None`, which omits the host's entries.
    pub replaces: bool,
    pub servers: Vec<IpAddr>,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

/// A `postStart` hook, and its path in the template.
#[derive(Debug)]
pub struct PostStart {
    pub action: ProbeAction,
    pub place: FieldPath,
}

impl TemplateAdditions {
    /// Applies the additions to the options of a container that is about to be created, overriding those of the
    /// workflow.
    pub fn apply(
        &self,
        image: &ImageConfig,
        addresses: PodAddresses<'_>,
        context: LaunchContext<'_>,
        policy: &Policy,
        options: &mut bundle::BundleOptions,
    ) -> Result<(), TemplateFault> {
        let environment = ContainerEnvironment::new(&options.env, &self.env, addresses);
        self.apply_command(&environment, options);
        for plan in &self.mounts {
            let mounts = plan.mounts(&environment, context.volumes, policy)?;
            // Replaces the workflow's mount at the same path.
            options.mounts.retain(|mount| !plan.is_at(&mount.target));
            options.mounts.extend(mounts);
        }
        options.env.extend(environment.added);
        self.user.apply(image, options);
        self.apply_names(options);
        if let Some(pid) = context.process {
            options.namespaces.pid = NamespaceSource::Path(format!("/proc/{pid}/ns/pid").into());
        }
        // Cannot replace the hook's annotations: a template with their keys is rejected.
        options.annotations.extend(self.annotations.clone());
        Ok(())
    }

    fn apply_command(
        &self,
        environment: &ContainerEnvironment,
        options: &mut bundle::BundleOptions,
    ) {
        let words = |words: &[String]| words.iter().map(|word| environment.expand(word)).collect();
        // As in Docker, a new command drops the arguments of the old one.
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

    /// Sets the entries of `/etc/hosts` and `/etc/resolv.conf`.
    fn apply_names(&self, options: &mut bundle::BundleOptions) {
        if !self.hosts.is_empty() {
            options.hosts.get_or_insert_default().extend(self.hosts.iter().cloned());
        }
        let (Some(dns), Some(change)) = (&mut options.dns, &self.dns) else { return };
        if change.replaces {
            *dns = ResolverOptions { host_files: Vec::new(), ..ResolverOptions::default() };
        } else if dns.servers.is_empty() {
            dns.append = true;
        }
        dns.servers.extend(&change.servers);
        dns.search.extend(change.search.iter().cloned());
        dns.options.extend(change.options.iter().cloned());
    }
}
