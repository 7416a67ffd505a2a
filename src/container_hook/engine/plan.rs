//! What a container of the request shall be, found out before anything is made: a mistake in the
//! last service must not be noticed after the first one runs.

mod connection;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub(super) use connection::Connection;

use super::backend::EngineBackend;
use super::confine::{confine, devices, limit};
use super::mounts::{OpenVolume, RunnerMount};
use super::pod::{Facts, Overlay};
use crate::bundle::{self, Init, Mount, MountSource, Namespace, Tmpfs};
use crate::container::{Health, Output, Role, Stop};
use crate::container_hook::audit;
use crate::container_hook::error::HookError;
use crate::container_hook::options::{CreateOptions, NetworkMode};
use crate::container_hook::policy::is_engine_socket;
use crate::container_hook::request::{ContainerArgs, ImageSource};
use crate::container_hook::volumes::Volume;
use crate::container_hook::words;
use crate::image::{Healthcheck, Image, ImageConfig, Platform, Reference};
use crate::network::PortMapping;
use crate::sys::host_file::HostFile;
use crate::sys::userns::{self, PrivateIds};

/// What annotations made from labels begin with.
pub(super) const LABEL: &str = "com.github.actions.label.";

/// A container of the request, checked.
pub(super) struct Plan<'a> {
    pub(super) args: &'a ContainerArgs,
    pub(super) role: Role,
    /// How messages call it: `job container`, `service redis`.
    pub(super) title: String,
    /// How it is called by others.
    pub(super) names: Vec<String>,
    pub(super) options: CreateOptions,
    pub(super) ports: Vec<PortMapping>,
    pub(super) reference: Option<Reference>,
    pub(super) platform: Platform,
    volumes: Vec<OpenVolume>,
    /// The runner's own directories.
    runner_mounts: Vec<RunnerMount>,
    devices: Vec<bundle::Device>,
    /// What the admin's template says of it.
    pub(super) overlay: Option<&'a Overlay>,
}

/// What a plan is made from.
pub(super) struct Asked<'a> {
    pub(super) args: &'a ContainerArgs,
    pub(super) role: Role,
    /// How it is called by others.
    pub(super) names: Vec<String>,
    /// What the admin's template says of it.
    pub(super) overlay: Option<&'a Overlay>,
}

/// What a container finds when it is made.
pub(super) struct Surroundings<'a> {
    pub(super) connection: Connection<'a>,
    /// Where the volumes of its pod are.
    pub(super) volumes: &'a Path,
    /// The process whose process namespace it shares.
    pub(super) process: Option<u32>,
    /// The pinned user namespace of the job's containers, if they have one.
    pub(super) user_namespace: Option<PathBuf>,
    /// Ids of the host that nobody but the job has.
    pub(super) private_ids: PrivateIds,
}

impl<'a> Plan<'a> {
    /// Checks a container: all that can be known without its image.
    pub(super) fn new(backend: &EngineBackend<'_>, asked: Asked<'a>) -> Result<Self, HookError> {
        let first = || asked.names.first().map_or("without a name", |n| n);
        let title = match asked.role {
            Role::Job => "job container".to_owned(),
            Role::Service => format!("service {}", first()),
            Role::Step => "container step".to_owned(),
            Role::Init => format!("init container {}", first()),
            Role::Sidecar => format!("sidecar {}", first()),
            Role::Instance => format!("instance {}", first()),
        };
        let plan = Self::check(backend, asked, &title);
        plan.map(|plan| Plan { title: title.clone(), ..plan }).map_err(HookError::of(&title))
    }

    fn check(
        backend: &EngineBackend<'_>,
        asked: Asked<'a>,
        title: &str,
    ) -> Result<Self, HookError> {
        let Asked { args, role, names, overlay } = asked;
        let mut options = CreateOptions::parse(args.create_options.as_deref().unwrap_or_default())?;
        let asked = options.clone();
        options.check(&backend.context.settings.policy)?;
        for ignored in &options.without_effect {
            backend
                .context
                .log
                .line(&format!("{title}: {} has no effect: {}", ignored.option, ignored.reason));
        }
        let mut ports = Vec::new();
        for text in args.port_mappings.iter().chain(&options.network.publish) {
            ports.extend(PortMapping::parse(text)?);
        }
        let reference = match &args.source {
            ImageSource::Image(image) => Some(image.parse::<Reference>()?),
            ImageSource::Dockerfile(_) => None,
        };
        let platform = match &options.platform {
            Some(platform) => platform.parse().map_err(HookError::Platform)?,
            None => Platform::host(),
        };
        let mut volumes = Vec::new();
        for mount in &args.user_mounts {
            volumes.push(Volume::from_mount(mount)?);
        }
        let written = volumes.clone();
        for volume in &mut volumes {
            backend.context.settings.policy.check_volume(volume)?;
        }
        audit::allowed(&backend.context, title, &asked, &written)?;
        volumes.extend(options.volumes.iter().cloned());
        let mut runner_mounts = Vec::new();
        for mount in &args.system_mounts {
            let Some(source) = mount.source.as_deref().map(Path::new) else { continue };
            if is_engine_socket(source) {
                // The runner names it on every machine; where there is none, there is nothing to say.
                if HostFile::open_trusted(source).is_ok() {
                    backend.context.log.line(&format!(
                        "{title}: {} is not mounted: it would make the container root of this machine",
                        source.display()
                    ));
                }
                continue;
            }
            runner_mounts.push((source, mount));
        }
        if let Some(overlay) = overlay {
            overlay.share_with_host(backend, &mut options)?;
            options.pull = overlay.pull()?.or(options.pull);
            ports.extend(overlay.ports()?);
        }
        // All that can be refused by its text has been by now.
        let runner_mounts = runner_mounts.into_iter().map(|(source, mount)| {
            RunnerMount::open(backend, source, &mount.target, mount.read_only)
        });
        let volumes = volumes.into_iter().map(|volume| OpenVolume::open(backend, volume));
        let gpu_volumes = options.gpu_volumes.iter().cloned().map(OpenVolume::open_trusted);
        let plan = Plan {
            runner_mounts: runner_mounts.collect::<Result<_, _>>()?,
            volumes: volumes.chain(gpu_volumes).collect::<Result<_, _>>()?,
            devices: devices(backend, &options)?,
            args,
            role,
            title: String::new(),
            names,
            options,
            ports,
            reference,
            platform,
            overlay,
        };
        plan.try_overlay(backend)?;
        Ok(plan)
    }

    /// Applies what the template says to nothing, to find what is wrong with it.
    fn try_overlay(&self, backend: &EngineBackend<'_>) -> Result<(), HookError> {
        let Some(overlay) = self.overlay else { return Ok(()) };
        let image = ImageConfig::default();
        let mut options = bundle::Options { env: self.env(), ..bundle::Options::default() };
        overlay.apply(backend, &Facts::unknown(&image), &mut options)?;
        overlay.checks(None)?;
        overlay.post_start(None)?;
        overlay.stop(None, None)?;
        overlay.runtime(backend)?;
        overlay.logins(backend)?;
        Ok(())
    }

    /// Says whether the container runs a program of ours, which does nothing but to be there.
    pub(super) fn keeps_alive(&self) -> bool {
        self.role == Role::Job
            && self.args.entry_point.is_none()
            && !self.overlay.is_some_and(Overlay::runs_command)
    }

    /// Returns where what the container writes goes.
    pub(super) fn output(&self, backend: &EngineBackend<'_>) -> Output {
        if self.keeps_alive() || self.role == Role::Step {
            Output::Discard
        } else {
            Output::Log { bytes: backend.settings.log_bytes }
        }
    }

    /// Returns the name that people see.
    pub(super) fn name(&self) -> String {
        let image =
            || self.reference.as_ref().map_or("dockerfile", Reference::base_name).to_owned();
        self.options.name.clone().or_else(|| self.names.first().cloned()).unwrap_or_else(image)
    }

    /// Returns how it is found out whether the container works: what the template says, else what the
    /// workflow and the image do; nothing if nobody says how.
    pub(super) fn health(
        &self,
        image: &ImageConfig,
        address: Option<IpAddr>,
    ) -> Result<Vec<Health>, HookError> {
        let checks = self.overlay.map(|overlay| overlay.checks(address)).transpose()?;
        match checks.filter(|checks| !checks.is_empty()) {
            Some(checks) => Ok(checks),
            // Kubernetes does not look at what images say of it.
            None if self.is_helper() => Ok(Vec::new()),
            None => Ok(self.docker_health(image).into_iter().collect()),
        }
    }

    fn docker_health(&self, image: &ImageConfig) -> Option<Health> {
        let asked = &self.options.health;
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
    pub(super) fn writable<'p>(
        &'p self,
        backend: &'p EngineBackend<'_>,
    ) -> impl Iterator<Item = &'p Path> {
        let own = self.runner_mounts.iter().filter_map(RunnerMount::writable);
        // A template may mount the work directory where the request does not.
        own.chain(self.overlay.map(|_| backend.context.runner.work()))
    }

    /// Says whether the container has volumes that outlive it.
    pub(super) fn has_named_volumes(&self) -> bool {
        self.volumes.iter().any(OpenVolume::has_name)
    }

    /// Says whether only the template has the container.
    pub(super) fn is_helper(&self) -> bool {
        matches!(self.role, Role::Init | Role::Sidecar)
    }

    /// Returns how the container is ended, if not at once. What runs nothing takes no notice.
    pub(super) fn stop(
        &self,
        image: &Image,
        address: Option<IpAddr>,
    ) -> Result<Option<Stop>, HookError> {
        if matches!(self.role, Role::Init | Role::Step) {
            return Ok(None);
        }
        let Some(overlay) = self.overlay else { return Ok(None) };
        let mut stop = overlay.stop(address, image.config.stop_signal.as_deref())?;
        if let Some(stop) = stop.as_mut().filter(|_| self.keeps_alive()) {
            stop.signal = None;
        }
        Ok(stop)
    }

    /// Returns how the container is connected.
    pub(super) fn network_mode(&self) -> NetworkMode {
        self.options.network.mode
    }

    /// Says whether the container is on the job's network.
    pub(super) fn is_connected(&self) -> bool {
        self.options.network.mode == NetworkMode::Job
    }

    /// Returns everything the container is given beyond its image.
    pub(super) fn bundle(
        &self,
        backend: &EngineBackend<'_>,
        image: &Image,
        id: &str,
        surroundings: &Surroundings<'_>,
    ) -> Result<bundle::Options, HookError> {
        let asked = &self.options;
        let hostname = self.overlay.and_then(Overlay::hostname);
        let (hostname, further) = hostname.map_or((None, None), |(name, more)| (Some(name), more));
        let hostname = hostname.or_else(|| asked.hostname.clone());
        let mut options = bundle::Options {
            args: words::rejoin(&self.args.entry_point_args)?,
            env: self.env(),
            cwd: self.args.working_directory.as_ref().or(asked.workdir.as_ref()).map(PathBuf::from),
            user: asked.user.clone(),
            groups: asked.groups.clone(),
            mounts: self.mounts(backend, id),
            devices: self.devices.clone(),
            read_only: asked.read_only,
            shm_size_bytes: asked.shm_size_bytes,
            sysctls: asked.sysctls.clone(),
            oom_score_adj: asked.resources.oom_score_adj,
            hostname: Some(hostname.unwrap_or_else(|| id[..12].to_owned())),
            domainname: asked.domainname.clone(),
            annotations: self.annotations(backend, image),
            hooks: backend.settings.hooks.clone(),
            ..bundle::Options::default()
        };
        let entrypoint = self.args.entry_point.as_ref().or(asked.entrypoint.as_ref());
        options.entrypoint = entrypoint.map(|program| match program.as_str() {
            "" => Vec::new(),
            program => vec![program.to_owned()],
        });
        let keeps_alive = self.keeps_alive();
        if keeps_alive || asked.init == Some(true) {
            let program = backend.engine.init_program()?;
            options.init = Some(Init { program, args: Vec::new(), alone: keeps_alive });
        }
        if keeps_alive && !options.args.is_empty() {
            options.args.clear();
        }
        limit(backend, asked, &mut options);
        confine(backend, asked, &mut options)?;
        let connection = &surroundings.connection;
        self.connect(backend, connection, (&mut options, further));
        if let Some(overlay) = self.overlay {
            let facts = Facts {
                image: &image.config,
                addresses: connection.addresses(),
                host: connection.gateway(),
                volumes: Some(surroundings.volumes),
                process: surroundings.process,
            };
            overlay.apply(backend, &facts, &mut options)?;
        }
        // Whose processes it shares is in the host's user namespace too, or it could not join them.
        let shares_processes = surroundings.process.is_some_and(userns::shares_with);
        if !shares_processes && self.has_own_users(backend, &options)? {
            options.user_namespace.clone_from(&surroundings.user_namespace);
        }
        options.private_ids = surroundings.private_ids;
        Ok(options)
    }

    /// Says whether the container has a user namespace of its own: not if it is given what belongs to
    /// the host's, which its administrator has to allow.
    fn has_own_users(
        &self,
        backend: &EngineBackend<'_>,
        options: &bundle::Options,
    ) -> Result<bool, HookError> {
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
            MountSource::Volume { .. } | MountSource::Tmpfs(_) => false,
        };
        // Other runtimes than runc and crun may know nothing of a namespace that is there already.
        let has_class = self.overlay.map(|overlay| overlay.runtime(backend)).transpose()?.flatten();
        Ok(!options.security.privileged
            && !all.contains(&&Namespace::Host)
            && !options.mounts.iter().any(is_shared)
            && has_class.is_none())
    }

    /// Returns the variables: those of `--env`, then the request's, then ours.
    fn env(&self) -> Vec<String> {
        let asked = self.options.env.iter().map(|variable| match &variable.value {
            Some(value) => format!("{}={value}", variable.name),
            None => variable.name.clone(),
        });
        let sent = &self.args.environment.0;
        let sent_pairs = sent.iter().map(|(name, value)| format!("{name}={value}"));
        let mut env: Vec<_> = asked.chain(sent_pairs).collect();
        if self.is_helper() {
            return env;
        }
        env.push("GITHUB_ACTIONS=true".to_owned());
        let has_ci = env.iter().any(|pair| pair.starts_with("CI="));
        if !has_ci {
            env.push("CI=true".to_owned());
        }
        env
    }

    /// Returns what hooks are matched against. What nobody else may claim comes last.
    fn annotations(&self, backend: &EngineBackend<'_>, image: &Image) -> BTreeMap<String, String> {
        // Labels are anybody's, and runtimes act on annotations: they get a name of their own.
        let labels = image.config.labels.iter().chain(&self.options.labels);
        let mut annotations: BTreeMap<_, _> =
            labels.map(|(key, value)| (format!("{LABEL}{key}"), value.clone())).collect();
        annotations.extend(self.options.annotations.clone());
        annotations
            .insert("org.opencontainers.image.ref.name".to_owned(), image.reference.to_string());
        annotations.extend(backend.context.runner.annotations(self.role.name(), &self.name()));
        annotations
    }

    fn mounts(&self, backend: &EngineBackend<'_>, id: &str) -> Vec<Mount> {
        let mut mounts = Vec::new();
        for tmpfs in &self.options.tmpfs {
            mounts.push(Mount {
                target: PathBuf::from(&tmpfs.target),
                source: MountSource::Tmpfs(Tmpfs {
                    options: tmpfs.options.clone(),
                    ..Tmpfs::default()
                }),
                read_only: false,
                subpath: None,
                ownership: None,
            });
        }
        for (number, volume) in self.volumes.iter().enumerate() {
            let own =
                backend.engine.disk_of(id).join("volumes").join(format!("anonymous-{number}"));
            mounts.push(volume.mount(backend, own));
        }
        mounts.extend(self.runner_mounts.iter().map(|mount| mount.mount(backend)));
        mounts
    }
}
