//! A container of the request as this host runs it: with its files opened, its template merged, and connected.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::backend::EngineBackend;
use super::ceilings;
use super::confine::{self, confine, devices, limit, pids_limit};
use super::job::Peer;
use super::mounts::{OpenVolume, RunnerMount};
use super::network::{Connection, JobNetwork};
use super::pod::{Additions, Facts, Overlay, TemplateContainer};
use super::settings::{JobSystem, NewPrivileges};
use crate::bundle::{self, Dns, HostEntry, Init, Mount, MountSource, Namespace, Tmpfs};
use crate::container::{self, Health, HostSystem, Output, STEPS_ARGS, Stop};
use crate::container_hook::error::HookError;
use crate::container_hook::options::{HostAddress, NetworkMode};
use crate::container_hook::plan::{ContainerPlan, ContainerRequest, Role};
use crate::container_hook::runner::LABEL;
use crate::image::{Healthcheck, Image, ImageConfig};
use crate::network::Endpoint;
use crate::sys::userns::{self, PrivateIds};

/// A container of the request or the template, of which nothing is made yet.
pub struct Plan<'a> {
    pub container: ContainerPlan<'a>,
    volumes: Vec<OpenVolume>,
    runner_mounts: Vec<RunnerMount>,
    /// What is known without the image, the network and the id, the template included.
    base: bundle::Options,
    /// The rest of what the template adds.
    pub additions: Additions,
    /// The programs of this host, if its root file system has those.
    pub system: Option<HostSystem>,
    /// Whether neither workflow nor template say if programs may get more rights.
    is_privilege_unsaid: bool,
}

/// What the configuration of a container needs besides its plan.
pub struct BundleInputs<'a> {
    pub connection: Connection<'a>,
    /// The directory of the volumes of its pod.
    pub volumes: &'a Path,
    /// The process whose process namespace it shares.
    pub process: Option<u32>,
    /// The pinned user namespace of the job's containers, if they have one.
    pub user_namespace: Option<PathBuf>,
    /// Ids of the host that nobody but the job has.
    pub private_ids: PrivateIds,
}

impl From<Role> for container::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Job => container::Role::Job,
            Role::Service => container::Role::Service,
            Role::Step => container::Role::Step,
            Role::Init => container::Role::Init,
            Role::Sidecar => container::Role::Sidecar,
        }
    }
}

impl<'a> Plan<'a> {
    /// Checks a container, all that can be known without its image, and merges the template into it.
    pub(super) fn new(
        backend: &EngineBackend<'_>,
        request: ContainerRequest<'a>,
        overlay: Option<&Overlay>,
    ) -> Result<Self, HookError> {
        let container = ContainerPlan::new(&backend.context, request)?;
        let title = container.title.clone();
        Plan::merge(backend, container, overlay).map_err(HookError::of(&title))
    }

    /// Plans a container that only the template has; it is connected as the one that it helps.
    pub(super) fn of_helper(
        backend: &EngineBackend<'_>,
        helper: &'a TemplateContainer,
        mode: Option<NetworkMode>,
    ) -> Result<Self, HookError> {
        let TemplateContainer { name, args, role, overlay } = helper;
        let request = ContainerRequest::helper(args, *role, name, mode);
        Plan::new(backend, request, Some(overlay))
    }

    fn merge(
        backend: &EngineBackend<'_>,
        mut container: ContainerPlan<'a>,
        overlay: Option<&Overlay>,
    ) -> Result<Self, HookError> {
        if let Some(overlay) = overlay {
            let options = &mut container.options;
            overlay.share_with_host(&backend.context.settings.policy, options)?;
            options.pull = overlay.pull()?.or(options.pull);
            container.ports.extend(overlay.ports()?);
        }
        ceilings::lower_asked(backend, &container.title, &mut container.options)?;
        // All that can be rejected by its text has been by now.
        let runner_mounts =
            container.runner_mounts.iter().filter_map(|mount| RunnerMount::open(backend, mount));
        let runner_mounts = runner_mounts.collect::<Result<_, _>>()?;
        let volumes = container.volumes.iter().cloned();
        let volumes = volumes.map(|volume| OpenVolume::open(backend, volume));
        let gpu_volumes = container.options.gpu_volumes.iter().cloned();
        let gpu_volumes = gpu_volumes.map(OpenVolume::open_trusted);
        let volumes = volumes.chain(gpu_volumes).collect::<Result<_, _>>()?;
        let mut base = base_options(backend, &container)?;
        let additions = overlay.map(|all| all.resolve(backend, &container.env(), &mut base));
        let additions = additions.transpose()?.unwrap_or_default();
        ceilings::lower_template(backend, &container.title, &mut base)?;
        let is_privilege_unsaid = container.options.security.no_new_privileges.is_none()
            && !overlay.is_some_and(Overlay::says_escalation);
        let has_system =
            container.role == Role::Job && backend.settings.job_system == JobSystem::Host;
        let system = has_system.then(HostSystem::find).transpose()?;
        Ok(Plan { container, volumes, runner_mounts, base, additions, system, is_privilege_unsaid })
    }

    /// Returns what was asked to be limited by a cgroup, by the workflow, the settings or the template: not
    /// what is limited anyway.
    pub(super) fn asked_limits(&self, backend: &EngineBackend<'_>) -> bundle::Resources {
        let policy = &backend.context.settings.policy;
        let is_asked = self.container.options.resources.pids.is_some()
            || backend.settings.pids_limit.is_some()
            || policy.max.pids().is_some();
        let pids = is_asked.then(|| pids_limit(backend, &self.container.options)).flatten();
        bundle::Resources { pids_limit: pids, ..self.base.resources.clone() }
    }

    /// Returns options with nothing but the limits of the container and its hooks, for a container that prepares it.
    pub(super) fn limits(&self, backend: &EngineBackend<'_>) -> bundle::Options {
        let mut options = bundle::Options {
            resources: self.base.resources.clone(),
            rlimits: self.base.rlimits.clone(),
            oom_score_adj: self.base.oom_score_adj,
            hooks: self.base.hooks.clone(),
            ..bundle::Options::default()
        };
        options.resources.pids_limit = pids_limit(backend, &self.container.options);
        options
    }

    /// Returns whether the container runs a program of ours, which does nothing but to be there.
    fn keeps_alive(&self) -> bool {
        self.container.role == Role::Job
            && self.container.args.entry_point.is_none()
            && !self.additions.runs_command
    }

    /// Returns whether that program starts steps: the runtime has to pass it a descriptor.
    pub(super) fn takes_steps(&self, backend: &EngineBackend<'_>) -> bool {
        let runtime = self.additions.runtime.as_ref().unwrap_or(&backend.engine.runtime);
        self.keeps_alive() && runtime.passes_descriptors()
    }

    /// Returns where what the container writes goes. What steps of a job leave running writes as the
    /// container.
    pub(super) fn output(&self, backend: &EngineBackend<'_>) -> Output {
        let is_silent = self.keeps_alive() && !self.takes_steps(backend);
        if is_silent || self.container.role == Role::Step {
            Output::Discard
        } else {
            Output::Log { bytes: backend.settings.log_bytes }
        }
    }

    /// Returns the checks that the container has to pass: the template's, else the workflow's or the
    /// image's.
    pub(super) fn health(&self, image: &ImageConfig, address: Option<IpAddr>) -> Vec<Health> {
        let checks = self.additions.checks(address);
        // Kubernetes does not look at what images say of it.
        if !checks.is_empty() || self.container.role.is_helper() {
            return checks;
        }
        self.docker_health(image).into_iter().collect()
    }

    fn docker_health(&self, image: &ImageConfig) -> Option<Health> {
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
        Health::new(&check, image.shell.as_deref())
    }

    /// Returns the runner's directories that the container can write to. What else the policy lets
    /// workflows mount is not only theirs: nothing there is changed after a job.
    pub(super) fn writable(&self) -> impl Iterator<Item = &Path> {
        let own = self.runner_mounts.iter().filter_map(RunnerMount::writable);
        let volumes = self.volumes.iter().filter_map(OpenVolume::writable);
        own.chain(volumes).chain(self.additions.writable())
    }

    /// Returns whether the container has volumes that outlive it.
    pub(super) fn has_named_volumes(&self) -> bool {
        self.volumes.iter().any(OpenVolume::has_name)
    }

    /// Returns how the container is ended, if not at once.
    pub(super) fn stop(&self, image: &Image, address: Option<IpAddr>) -> Option<Stop> {
        if matches!(self.container.role, Role::Init | Role::Step) {
            return None;
        }
        let stop = self.additions.stop(address, image.config.stop_signal.as_deref())?;
        // What runs nothing takes no notice.
        let signal = stop.signal.filter(|_| !self.keeps_alive());
        Some(Stop { signal, ..stop })
    }

    /// Returns how the container is connected.
    pub(super) fn network_mode(&self) -> NetworkMode {
        self.container.options.network.mode
    }

    /// Returns whether the container is on the job's network.
    pub(super) fn is_connected(&self) -> bool {
        self.container.options.network.mode == NetworkMode::Job
    }

    /// Returns everything the container is given beyond its image.
    pub(super) fn bundle(
        &self,
        backend: &EngineBackend<'_>,
        image: &Image,
        id: &str,
        inputs: &BundleInputs<'_>,
    ) -> Result<bundle::Options, HookError> {
        let mut options = bundle::Options {
            args: self.container.program_args.clone(),
            env: self.container.env(),
            mounts: self.mounts(backend, id),
            hostname: self.hostname(id),
            annotations: self.annotations(backend, image),
            private_ids: inputs.private_ids,
            ..self.base.clone()
        };
        options.resources.pids_limit = pids_limit(backend, &self.container.options);
        let keeps_alive = self.keeps_alive();
        if keeps_alive || self.container.options.init == Some(true) {
            let program = backend.engine.init_program()?;
            let args = self.takes_steps(backend).then_some(STEPS_ARGS).into_iter().flatten();
            let args = args.map(str::to_owned).collect();
            options.init = Some(Init { program, args, idle_only: keeps_alive });
        }
        if keeps_alive {
            options.args.clear();
        }
        let connection = &inputs.connection;
        self.connect(backend, connection, &mut options);
        self.additions.apply(
            &Facts {
                image: &image.config,
                addresses: connection.addresses(),
                policy: &backend.context.settings.policy,
                volumes: inputs.volumes,
                process: inputs.process,
            },
            &mut options,
        )?;
        // Whose processes it shares is in the host's user namespace too, or it could not join them.
        let shares_processes = inputs.process.is_some_and(userns::shares_with);
        if !shares_processes && self.has_own_users(&options) {
            options.user_namespace.clone_from(&inputs.user_namespace);
        }
        // Of all that an ordinary user makes, root is that user.
        let is_apart = options.user_namespace.is_some() || backend.engine.privilege.has_own_users();
        if self.is_privilege_unsaid
            && is_apart
            && backend.settings.new_privileges == NewPrivileges::OfOwnUsers
        {
            options.security.no_new_privileges = false;
        }
        if self.system.is_some() && !is_apart {
            HostSystem::confine(&mut options);
        }
        confine::nest(backend, &self.container.title, is_apart, &mut options)?;
        Ok(options)
    }

    /// Returns the host name; none in the host's UTS namespace.
    fn hostname(&self, id: &str) -> Option<String> {
        let name = self.additions.hostname.as_ref().or(self.container.options.hostname.as_ref());
        let is_own = self.base.namespaces.uts != Namespace::Host;
        is_own.then(|| name.cloned().unwrap_or_else(|| id[..12].to_owned()))
    }

    /// Returns whether the container has a user namespace of its own: not if it is given what belongs to
    /// the host's, which its administrator has to allow.
    fn has_own_users(&self, options: &bundle::Options) -> bool {
        let namespaces = &options.namespaces;
        let all = [
            &namespaces.network,
            &namespaces.pid,
            &namespaces.ipc,
            &namespaces.uts,
            &namespaces.cgroup,
        ];
        let is_shared = |mount: &Mount| match &mount.source {
            MountSource::Bind { propagation, .. } | MountSource::Trusted { propagation, .. } => {
                *propagation == bundle::Propagation::Shared
            }
            MountSource::System { .. } | MountSource::Volume { .. } | MountSource::Tmpfs(_) => {
                false
            }
        };
        !options.security.privileged
            && !all.contains(&&Namespace::Host)
            && !options.mounts.iter().any(is_shared)
            // Other runtimes than runc and crun may know nothing of a namespace that is there already.
            && self.additions.runtime.is_none()
    }

    /// Returns what hooks are matched against. What nobody else may claim comes last.
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

    fn mounts(&self, backend: &EngineBackend<'_>, id: &str) -> Vec<Mount> {
        let mut mounts = Vec::new();
        for tmpfs in &self.container.options.tmpfs {
            mounts.push(Mount {
                target: PathBuf::from(&tmpfs.target),
                source: MountSource::Tmpfs(Tmpfs {
                    options: tmpfs.options.clone(),
                    ..Tmpfs::default()
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

/// Returns what a container is given that depends neither on its image nor on its network.
fn base_options(
    backend: &EngineBackend<'_>,
    container: &ContainerPlan<'_>,
) -> Result<bundle::Options, HookError> {
    let (args, asked) = (container.args, &container.options);
    let program = args.entry_point.as_ref().or(asked.entrypoint.as_ref());
    let mut options = bundle::Options {
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
        ..bundle::Options::default()
    };
    limit(backend, asked, &mut options);
    confine(backend, asked, &mut options)?;
    if asked.network.mode == NetworkMode::Host {
        options.namespaces.network = Namespace::Host;
    }
    Ok(options)
}

impl Plan<'_> {
    /// Connects the container.
    pub(in crate::container_hook::engine) fn connect(
        &self,
        backend: &EngineBackend<'_>,
        connection: &Connection<'_>,
        options: &mut bundle::Options,
    ) {
        let asked = &self.container.options.network;
        let servers = if asked.dns.is_empty() { &backend.settings.dns } else { &asked.dns };
        let dns = Dns {
            loopback_works: matches!(connection, Connection::Host),
            servers: servers.clone(),
            fallback: connection.resolver(),
            search: asked.dns_search.clone(),
            options: asked.dns_options.clone(),
            ..Dns::default()
        };
        let mut gateway_address = None;
        let mut hosts = Vec::new();
        match connection {
            Connection::Job { endpoint, gateway, hosts: names } => {
                options.namespaces.network = Namespace::Path(endpoint.netns.clone());
                gateway_address = *gateway;
                hosts.extend(names.iter().cloned());
                let own = options.hostname.clone();
                for address in &endpoint.addresses {
                    let own = own
                        .iter()
                        .chain(&self.additions.second_hostname)
                        .chain(&self.container.names);
                    let names = own.cloned().collect();
                    hosts.push(HostEntry { address: *address, names });
                }
                options.dns = Some(dns);
            }
            Connection::Host => {
                options.namespaces.network = Namespace::Host;
                options.dns = Some(dns);
            }
            Connection::None => options.namespaces.network = Namespace::Private,
        }
        for host in &asked.hosts {
            let address = match host.address {
                HostAddress::Address(address) => Some(address),
                HostAddress::Gateway => gateway_address,
            };
            if let Some(address) = address {
                hosts.push(HostEntry { address, names: vec![host.name.clone()] });
            }
        }
        options.hosts = Some(hosts);
    }
}

/// A container that has all it needs but is not yet made.
pub struct PendingContainer<'a> {
    pub plan: &'a Plan<'a>,
    pub image: Image,
    pub id: String,
    /// None if it is not on the job's network.
    pub endpoint: Option<Endpoint>,
}

/// What all containers of a job or step are started in.
#[derive(Clone, Copy)]
pub struct LaunchContext<'a> {
    pub network: &'a JobNetwork,
    pub peers: &'a [Peer],
    /// The directory of the volumes of the pod.
    pub volumes: &'a Path,
    /// The process whose process namespace all but the first share.
    pub process: Option<u32>,
}

impl PendingContainer<'_> {
    /// Returns the container's own address.
    pub fn address(&self) -> Option<IpAddr> {
        self.endpoint.as_ref().and_then(|endpoint| endpoint.addresses.first().copied())
    }
}
