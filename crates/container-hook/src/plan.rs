//! Plans of containers on this host: with opened files, the merged template, and the network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use container_hook_job::HookError;
use container_hook_job::options::{HostAddress, NetworkMode};
use container_hook_job::plan::{ContainerPlan, ContainerRequest, PlanRole};
use container_hook_job::runner::LABEL;
use oci_hooks::cdi;
use oci_hooks_engine::bundle::{
    self, ContainerInit, HostEntry, MountRequest, MountSource, NamespaceSource, ResolverOptions,
    TmpfsMount,
};
use oci_hooks_engine::container::{
    self, HealthPolicy, HostSystem, OutputMode, STEPS_ARGS, StopPolicy,
};
use oci_hooks_engine::network::NetworkEndpoint;
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_host::userns;
use oci_hooks_image::{Healthcheck, Image, ImageConfig};

use super::backend::EngineBackend;
use super::confine::{self, confine, devices, limit, pids_limit};
use super::job::Peer;
use super::maximums;
use super::mounts::{OpenVolume, RunnerMount};
use super::network::JobNetwork;
use super::pod::{ContainerOverlay, PodAddresses, TemplateAdditions, TemplateContainer};
use super::settings::{JobRootFs, NewPrivileges};
use super::share;

/// A container of the request or the template, before it is created.
pub struct LaunchPlan<'a> {
    pub container: ContainerPlan<'a>,
    volumes: Vec<OpenVolume>,
    runner_mounts: Vec<RunnerMount>,
    /// Options that do not depend on the image, the network and the id, including the template's.
    base: bundle::BundleOptions,
    /// Additions of the template that are not in `base`.
    pub additions: TemplateAdditions,
    /// Programs of this host, if the root file system consists of them.
    pub system: Option<HostSystem>,
    /// Set if neither the workflow nor the template sets whether programs may gain privileges.
    uses_default_privileges: bool,
}

impl<'a> LaunchPlan<'a> {
    /// Checks a container, as far as possible without its image, and merges the template into it.
    pub(super) fn new(
        backend: &EngineBackend<'_>,
        request: ContainerRequest<'a>,
        overlay: Option<&ContainerOverlay>,
    ) -> Result<Self, HookError> {
        let container = ContainerPlan::new(&backend.context, request)?;
        let title = container.title.clone();
        LaunchPlan::merge(backend, container, overlay).map_err(HookError::of(&title))
    }

    /// Plans an init container or sidecar of the template, with the network mode of the job container or step.
    pub(super) fn of_helper(
        backend: &EngineBackend<'_>,
        helper: &'a TemplateContainer,
        mode: Option<NetworkMode>,
    ) -> Result<Self, HookError> {
        let TemplateContainer { args, overlay } = helper;
        let request = ContainerRequest::helper(args, overlay.role, &overlay.container.name, mode);
        LaunchPlan::new(backend, request, Some(overlay))
    }

    fn merge(
        backend: &EngineBackend<'_>,
        mut container: ContainerPlan<'a>,
        overlay: Option<&ContainerOverlay>,
    ) -> Result<Self, HookError> {
        if let Some(overlay) = overlay {
            let options = &mut container.options;
            overlay.share_with_host(&backend.context.settings.policy, options)?;
            options.pull = overlay.pull()?.or(options.pull);
            container.ports.extend(overlay.ports()?);
        }
        maximums::lower_workflow_limits(backend, &container.title, &mut container.options)?;
        // Opens files only after all checks of the request's text.
        let runner_mounts =
            container.runner_mounts.iter().filter_map(|mount| RunnerMount::open(backend, mount));
        let mut runner_mounts = runner_mounts.collect::<Result<Vec<_>, _>>()?;
        if container.role == PlanRole::Job {
            runner_mounts.extend(RunnerMount::of_actions(backend));
        }
        let volumes = container.volumes.iter().cloned();
        let volumes = volumes.map(|volume| OpenVolume::open(backend, volume));
        let gpu_volumes = container.options.gpu_volumes.iter().cloned();
        let gpu_volumes = gpu_volumes.map(OpenVolume::open_trusted);
        let volumes = volumes.chain(gpu_volumes).collect::<Result<_, _>>()?;
        let mut base = base_options(backend, &container)?;
        let additions = overlay.map(|all| all.resolve(backend, &container.env(), &mut base));
        let additions = additions.transpose()?.unwrap_or_default();
        maximums::lower_template_limits(backend, &container.title, &mut base)?;
        let uses_default_privileges = container.options.security.no_new_privileges.is_none()
            && !overlay.is_some_and(ContainerOverlay::sets_escalation);
        let has_system =
            container.role == PlanRole::Job && backend.settings.job_system == JobRootFs::Host;
        let system = has_system.then(HostSystem::find).transpose()?;
        Ok(LaunchPlan {
            container,
            volumes,
            runner_mounts,
            base,
            additions,
            system,
            uses_default_privileges,
        })
    }

    /// Returns the cgroup limits from the workflow, the settings and the template, without default limits.
    pub(super) fn requested_limits(&self, backend: &EngineBackend<'_>) -> bundle::ResourceLimits {
        let policy = &backend.context.settings.policy;
        let is_asked = self.container.options.resources.pids.is_some()
            || backend.settings.limits.pids.is_some()
            || policy.max.pids().is_some();
        let pids = is_asked.then(|| pids_limit(backend, &self.container.options));
        bundle::ResourceLimits { pids_limit: pids, ..self.base.resources.clone() }
    }

    /// Returns options with only the limits and hooks of the container, for the build of its image.
    pub(super) fn limits(&self, backend: &EngineBackend<'_>) -> bundle::BundleOptions {
        let mut options = bundle::BundleOptions {
            resources: self.base.resources.clone(),
            rlimits: self.base.rlimits.clone(),
            oom_score_adj: self.base.oom_score_adj,
            hooks: self.base.hooks.clone(),
            ..bundle::BundleOptions::default()
        };
        options.resources.pids_limit = Some(pids_limit(backend, &self.container.options));
        options
    }

    /// Returns whether the container can run in a user namespace that another user owns.
    pub(super) fn can_have_other_owner(&self) -> bool {
        bundle::can_have_other_owner(&self.base)
    }

    /// Returns whether the container runs only the hook's init program, and no command.
    fn has_idle_init(&self) -> bool {
        self.container.role == PlanRole::Job
            && self.container.args.entry_point.is_none()
            && !self.additions.runs_command
    }

    pub(super) fn runtime<'b>(&'b self, backend: &EngineBackend<'b>) -> &'b OciRuntime {
        self.additions.runtime.as_ref().unwrap_or(&backend.engine.runtime)
    }

    /// Returns whether the init program starts steps; the runtime has to pass it a descriptor.
    pub(super) fn can_start_steps(&self, backend: &EngineBackend<'_>) -> bool {
        self.has_idle_init() && self.runtime(backend).capabilities().passes_descriptors
    }

    /// Returns the destination of the container's output. Background processes of steps write to it too.
    pub(super) fn output(&self, backend: &EngineBackend<'_>) -> OutputMode {
        let is_silent = self.has_idle_init() && !self.can_start_steps(backend);
        if is_silent || self.container.role == PlanRole::Step {
            OutputMode::Discard
        } else {
            OutputMode::Log { bytes: backend.settings.log_bytes }
        }
    }

    /// Returns the health checks that the container has to pass: the template's, else the workflow's or the
    /// image's.
    pub(super) fn health(&self, image: &ImageConfig, address: Option<IpAddr>) -> Vec<HealthPolicy> {
        let checks = self.additions.checks.iter();
        let checks: Vec<_> = checks.map(|check| check.to_health_policy(address)).collect();
        // Kubernetes ignores the health checks of images.
        if !checks.is_empty() || self.container.role.is_helper() {
            return checks;
        }
        self.docker_health(image).into_iter().collect()
    }

    fn docker_health(&self, image: &ImageConfig) -> Option<HealthPolicy> {
        let asked = &self.container.options.health;
        if asked.disabled {
            return None;
        }
        let base = image.healthcheck.clone().unwrap_or_default();
        let line = asked.command.as_ref().filter(|line| !line.is_empty());
        let check = Healthcheck {
            test: line.map_or(base.test, |line| vec!["CMD-SHELL".to_owned(), line.clone()]),
            interval: asked.interval.or(base.interval),
            timeout: asked.timeout.or(base.timeout),
            start_period: asked.start_period.or(base.start_period),
            start_interval: asked.start_interval.or(base.start_interval),
            retries: asked.retries.or(base.retries),
        };
        HealthPolicy::new(&check, image.shell.as_deref())
    }

    /// Returns the runner's directories that the container can write to. Ownership of files in other mounted
    /// directories is not restored after a job, because others use them too.
    pub(super) fn writable_paths(&self) -> impl Iterator<Item = &Path> {
        let own = self.runner_mounts.iter().filter_map(RunnerMount::writable_path);
        let volumes = self.volumes.iter().filter_map(OpenVolume::writable_path);
        let of_template = self.additions.mounts.iter().flat_map(|mount| mount.writable_paths());
        own.chain(volumes).chain(of_template)
    }

    /// Returns whether the container has named volumes, which outlive it.
    pub(super) fn has_named_volumes(&self) -> bool {
        self.volumes.iter().any(OpenVolume::has_name)
    }

    /// Returns the stop sequence of the container; none if it is killed at once.
    pub(super) fn stop(&self, image: &Image, address: Option<IpAddr>) -> Option<StopPolicy> {
        if matches!(self.container.role, PlanRole::Init | PlanRole::Step) {
            return None;
        }
        let stop = self.additions.stop.as_ref()?;
        let stop = stop.to_stop_policy(address, image.config.stop_signal.as_deref());
        // The init program ignores stop signals.
        let signal = stop.signal.filter(|_| !self.has_idle_init());
        Some(StopPolicy { signal, ..stop })
    }

    /// Returns the network mode of the container.
    pub(super) fn network_mode(&self) -> NetworkMode {
        self.container.options.network.mode
    }

    /// Returns whether the container is on the job's network.
    pub(super) fn is_connected(&self) -> bool {
        self.container.options.network.mode == NetworkMode::Job
    }

    /// Returns the host name; none in the host's UTS namespace.
    fn hostname(&self, id: &str) -> Option<String> {
        let name = self.additions.hostname.as_ref().or(self.container.options.hostname.as_ref());
        let is_own = self.base.namespaces.uts != NamespaceSource::Host;
        is_own.then(|| name.cloned().unwrap_or_else(|| id[..12].to_owned()))
    }

    /// Returns whether the container can run in the job's user namespace. Privileged containers, and containers with
    /// namespaces of the host or shared mounts, need the host's; the admin has to allow them.
    fn allows_user_namespace(&self, options: &bundle::BundleOptions) -> bool {
        let namespaces = &options.namespaces;
        let all = [
            &namespaces.network,
            &namespaces.pid,
            &namespaces.ipc,
            &namespaces.uts,
            &namespaces.cgroup,
        ];
        let is_shared = |mount: &MountRequest| match &mount.source {
            MountSource::Bind { propagation, .. } | MountSource::Trusted { propagation, .. } => {
                *propagation == bundle::MountPropagation::Shared
            }
            MountSource::System { .. } | MountSource::Volume { .. } | MountSource::Tmpfs(_) => {
                false
            }
        };
        !options.security.privileged
            && !all.contains(&&NamespaceSource::Host)
            && !options.mounts.iter().any(is_shared)
    }

    /// Returns the annotations that hooks are matched against. Annotations of this hook come last and override
    /// those of the workflow.
    fn annotations(&self, backend: &EngineBackend<'_>, image: &Image) -> BTreeMap<String, String> {
        let labels = image.config.labels.iter().chain(&self.container.options.labels);
        let mut annotations: BTreeMap<_, _> =
            labels.map(|(key, value)| (format!("{LABEL}{key}"), value.clone())).collect();
        annotations.extend(self.container.options.annotations.clone());
        annotations
            .insert("org.opencontainers.image.ref.name".to_owned(), image.reference.to_string());
        annotations.extend(
            backend.context.runner.annotations(self.container.role.name(), &self.container.name()),
        );
        annotations
    }

    fn mounts(&self, backend: &EngineBackend<'_>, id: &str) -> Vec<MountRequest> {
        // Mounts of CDI devices.
        let mut mounts = self.base.mounts.clone();
        for tmpfs in &self.container.options.tmpfs {
            mounts.push(MountRequest {
                target: PathBuf::from(&tmpfs.target),
                source: MountSource::Tmpfs(TmpfsMount {
                    options: tmpfs.options.clone(),
                    ..TmpfsMount::default()
                }),
                read_only: false,
                subpath: None,
                id_mapping: None,
            });
        }
        for (number, volume) in self.volumes.iter().enumerate() {
            let own =
                backend.engine.disk_of(id).join("volumes").join(format!("anonymous-{number}"));
            mounts.push(volume.mount(backend, own));
        }
        mounts.extend(self.runner_mounts.iter().map(|mount| mount.mount(backend)));
        mounts.extend(self.system.iter().flat_map(HostSystem::mounts));
        mounts
    }
}

/// Returns the options of a container that depend neither on its image nor on its network.
fn base_options(
    backend: &EngineBackend<'_>,
    container: &ContainerPlan<'_>,
) -> Result<bundle::BundleOptions, HookError> {
    let (args, asked) = (container.args, &container.options);
    let program = args.entry_point.as_ref().or(asked.entrypoint.as_ref());
    let mut options = bundle::BundleOptions {
        entrypoint: program.map(|program| match program.as_str() {
            "" => Vec::new(),
            program => vec![program.to_owned()],
        }),
        cwd: args.working_directory.as_ref().or(asked.workdir.as_ref()).map(PathBuf::from),
        user: asked.user.clone(),
        supplementary_groups: asked.groups.clone(),
        devices: devices(backend, asked)?,
        read_only: asked.read_only,
        shm_size_bytes: asked.shm_size_bytes,
        sysctls: asked.sysctls.clone(),
        oom_score_adj: asked.resources.oom_score_adj,
        domainname: asked.domainname.clone(),
        hooks: backend.settings.hooks.clone(),
        ..bundle::BundleOptions::default()
    };
    options
        .add_cdi_devices(&cdi::DEFAULT_DIRS.map(PathBuf::from), &asked.cdi_devices)
        .map_err(bundle::BundleError::from)
        .map_err(container::ContainerError::from)?;
    limit(backend, asked, &mut options);
    confine(backend, asked, &mut options);
    if asked.network.mode == NetworkMode::Host {
        options.namespaces.network = NamespaceSource::Host;
    }
    Ok(options)
}

/// A container that is ready to be created.
pub struct PendingContainer<'a> {
    pub plan: &'a LaunchPlan<'a>,
    pub image: Image,
    pub id: String,
    /// Connection to the job's network; none if the container is not on it.
    pub endpoint: Option<NetworkEndpoint>,
}

/// The network and pod that all containers of a job or step share.
#[derive(Clone, Copy)]
pub struct LaunchContext<'a> {
    pub network: &'a JobNetwork,
    pub peers: &'a [Peer],
    /// Directory of the pod's volumes.
    pub volumes: &'a Path,
    /// Process whose PID namespace all containers except the first share.
    pub process: Option<u32>,
}

impl PendingContainer<'_> {
    /// Returns the first address of the container.
    pub fn address(&self) -> Option<IpAddr> {
        self.endpoint.as_ref().and_then(|endpoint| endpoint.addresses.first().copied())
    }

    /// Returns the complete options of the container.
    pub(super) fn bundle(
        &self,
        backend: &EngineBackend<'_>,
        context: LaunchContext<'_>,
    ) -> Result<bundle::BundleOptions, HookError> {
        let PendingContainer { plan, image, id, .. } = self;
        let mut options = bundle::BundleOptions {
            args: plan.container.program_args.clone(),
            env: plan.container.env(),
            mounts: plan.mounts(backend, id),
            hostname: plan.hostname(id),
            annotations: plan.annotations(backend, image),
            private_ids: context.network.private_ids(),
            ..plan.base.clone()
        };
        options.resources.pids_limit = Some(pids_limit(backend, &plan.container.options));
        let keeps_alive = plan.has_idle_init();
        if keeps_alive || plan.container.options.init == Some(true) {
            let program = backend.engine.init_program()?;
            let args = plan.can_start_steps(backend).then_some(STEPS_ARGS).into_iter().flatten();
            let args = args.map(str::to_owned).collect();
            options.init = Some(ContainerInit { program, args, idle_only: keeps_alive });
        }
        if keeps_alive {
            options.args.clear();
        }
        let addresses = self.connect(backend, context, &mut options);
        let policy = &backend.context.settings.policy;
        plan.additions.apply(&image.config, addresses, context, policy, &mut options)?;
        let user = options.user.as_deref().unwrap_or(&image.config.user);
        if !plan.container.role.is_helper() && share::may_be_needed(backend, user) {
            share::trust_repositories(&image.config, &mut options.env);
        }
        // To join the PID namespace of a process, a container must be in the user namespace that owns it, here the host's.
        let shares_processes = context.process.is_some_and(userns::shares_namespace_with);
        let can_join = plan.runtime(backend).capabilities().joins_user_namespaces;
        if can_join && !shares_processes && plan.allows_user_namespace(&options) {
            let user_namespace = context.network.user_namespace();
            options.user_namespace = user_namespace.filter(|_| backend.settings.user_namespace);
        }
        // Root in a container of a rootless user is mapped to that user.
        let is_apart = options.user_namespace.is_some() || backend.engine.privilege.has_own_users();
        if plan.uses_default_privileges
            && is_apart
            && backend.settings.new_privileges == NewPrivileges::InUserNamespace
        {
            options.security.no_new_privileges = false;
        }
        if plan.system.is_some() && !is_apart {
            HostSystem::confine(&mut options);
        }
        confine::nest(backend, &plan.container.title, is_apart, &mut options)?;
        Ok(options)
    }

    /// Sets the network namespace, name servers and host names of the container. Returns the addresses in its network.
    fn connect(
        &self,
        backend: &EngineBackend<'_>,
        LaunchContext { network, peers, .. }: LaunchContext<'_>,
        options: &mut bundle::BundleOptions,
    ) -> PodAddresses<'_> {
        let LaunchPlan { container, additions, .. } = self.plan;
        let asked = &container.options.network;
        let endpoint = self.endpoint.as_ref().filter(|_| asked.mode == NetworkMode::Job);
        let gateway = endpoint.map(|_| network.host_address());
        options.namespaces.network = match (endpoint, asked.mode) {
            (Some(endpoint), _) => NamespaceSource::Path(endpoint.netns.clone()),
            (None, NetworkMode::Host) => NamespaceSource::Host,
            (None, _) => NamespaceSource::Private,
        };
        let servers = if asked.dns.is_empty() { &backend.settings.dns } else { &asked.dns };
        let is_on_host = asked.mode == NetworkMode::Host;
        options.dns = (is_on_host || endpoint.is_some()).then(|| ResolverOptions {
            loopback_works: is_on_host,
            servers: servers.clone(),
            fallback: endpoint.and_then(|endpoint| endpoint.resolver),
            search: asked.dns_search.clone(),
            options: asked.dns_options.clone(),
            ..ResolverOptions::default()
        });
        let mut hosts = Vec::new();
        let mut add = |addresses: &[IpAddr], names: &[String]| {
            let entries = addresses.iter();
            hosts.extend(entries.map(|&address| HostEntry { address, names: names.to_vec() }));
        };
        if let Some(endpoint) = endpoint {
            let is_other = |peer: &&Peer| peer.addresses != endpoint.addresses;
            for peer in peers.iter().filter(is_other).filter(|peer| !peer.names.is_empty()) {
                add(&peer.addresses, &peer.names);
            }
            let own = options.hostname.iter();
            let own = own.chain(&additions.second_hostname).chain(&container.names);
            let mut names: Vec<String> = Vec::new();
            for name in own {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
            add(&endpoint.addresses, &names);
        }
        for host in &asked.hosts {
            let address = match host.address {
                HostAddress::Address(address) => Some(address),
                HostAddress::Gateway => gateway,
            };
            add(address.as_slice(), std::slice::from_ref(&host.name));
        }
        options.hosts = Some(hosts);
        PodAddresses {
            own: endpoint.map_or(&[][..], |endpoint| &endpoint.addresses),
            host: gateway,
        }
    }
}
