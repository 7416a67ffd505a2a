//! Plans of the request's containers. All are checked before the first is created, so that a mistake in the
//! last service is reported before the first service runs.
//!
//! Plans do not depend on the backend. `options:` is parsed once, in a [`ContainerRequest`].

use std::path::Path;

use oci_hooks_engine::network::PortMapping;
use oci_hooks_host::host_file::HostFile;
use oci_hooks_image::{ImageReference, Platform};
use rustix::fs::FileType;

use super::context::HookContext;
use super::error::HookError;
use super::options::{CreateOptions, NetworkMode, OptionError};
use super::policy::{PolicyError, is_engine_socket};
use super::request::{ContainerArgs, ImageSource, PrepareJob, RequestMount};
use super::service_names::{self, RequestedService};
use super::volumes::RequestVolume;
use super::words;

pub use super::role::PlanRole;

/// A checked container that the policy allows.
pub struct ContainerPlan<'a> {
    pub args: &'a ContainerArgs,
    pub role: PlanRole,
    /// Name in messages: `job container`, `service redis`.
    pub title: String,
    /// Host names of the container in the network of the job.
    pub names: Vec<String>,
    pub options: CreateOptions,
    pub ports: Vec<PortMapping>,
    pub reference: Option<ImageReference>,
    pub platform: Platform,
    /// Arguments of the program, rejoined from the pieces that the runner sent.
    pub program_args: Vec<String>,
    /// Volumes of `volumes:`, then of `options:`; paths of bind mounts are resolved.
    pub volumes: Vec<RequestVolume>,
    pub runner_mounts: Vec<&'a RequestMount>,
    default_env: Vec<(String, String)>,
}

impl<'a> ContainerPlan<'a> {
    /// Checks the request of a container and returns its plan.
    pub fn new(
        context: &HookContext<'_>,
        request: ContainerRequest<'a>,
    ) -> Result<Self, HookError> {
        let title = request.role.title(request.names.first());
        Self::check(context, request, &title).map_err(HookError::of(&title))
    }

    fn check(
        context: &HookContext<'_>,
        request: ContainerRequest<'a>,
        title: &str,
    ) -> Result<Self, HookError> {
        let ContainerRequest { args, options, role, names, shared_network } = request;
        let work = context.runner.work();
        let mut written_options = options?;
        let defaults = &context.runner.defaults;
        if written_options.network.mode == NetworkMode::Job && !role.is_helper() {
            written_options.network.mode = defaults.network;
        }
        for volume in &mut written_options.volumes {
            volume.source = volume.source.clone().of_runner(work);
        }
        let mounts = args.user_mounts.iter().map(|mount| {
            let volume = RequestVolume::from_mount(mount)?;
            Ok(RequestVolume { source: volume.source.of_runner(work), ..volume })
        });
        let policy = &context.settings.policy;
        let mut options = written_options.clone();
        let mut denials = options.check(policy).map_or_else(|error| error.0, |()| Vec::new());
        let (written, malformed): (Vec<_>, Vec<_>) = mounts.partition(Result::is_ok);
        let written_volumes: Vec<RequestVolume> = written.into_iter().flatten().collect();
        let mut volumes = written_volumes.clone();
        denials.extend(volumes.iter_mut().filter_map(|volume| policy.check_volume(volume).err()));
        if !denials.is_empty() {
            return Err(PolicyError(denials).into());
        }
        if let Some(Err(error)) = malformed.into_iter().next() {
            return Err(error);
        }
        let mut ports = Vec::new();
        for text in sent_ports(context, args, role, title).iter().chain(&options.network.publish) {
            ports.extend(PortMapping::parse(text)?);
        }
        let reference = match &args.source {
            ImageSource::Image(image) => Some(image.parse::<ImageReference>()?),
            ImageSource::Dockerfile(_) => None,
        };
        let platform = match &options.platform {
            Some(platform) => platform.parse().map_err(HookError::Platform)?,
            None => defaults.platform.clone().unwrap_or_else(Platform::host),
        };
        // Options that `check` replaced by a harmless equivalent need no line in the audit log.
        written_options.host_namespaces.clone_from(&options.host_namespaces);
        written_options.security.apparmor.clone_from(&options.security.apparmor);
        context.audit.log_allowed(context.runner, title, &written_options, &written_volumes)?;
        volumes.extend(options.volumes.iter().cloned());
        if let Some(mode) = shared_network {
            options.network.mode = mode;
        }
        let program_args = words::rejoin(&args.entry_point_args)?;
        let runner_mounts = runner_mounts(context, args, role, title);
        Ok(ContainerPlan {
            args,
            role,
            title: title.to_owned(),
            names,
            options,
            ports,
            reference,
            platform,
            program_args,
            volumes,
            runner_mounts,
            default_env: defaults.env.clone(),
        })
    }

    /// Returns the display name of the container.
    pub fn name(&self) -> String {
        let image =
            || self.reference.as_ref().map_or("dockerfile", ImageReference::base_name).to_owned();
        self.options.name.clone().or_else(|| self.names.first().cloned()).unwrap_or_else(image)
    }

    /// Returns the environment variables; later ones override earlier ones. They are, in
    /// this order, the runner's defaults, those of `--env`, those of the request, and those that the hook
    /// adds. Init containers and sidecars get only those of `--env` and of the request.
    pub fn env(&self) -> Vec<String> {
        let asked = self.options.env.iter().map(|variable| match &variable.value {
            Some(value) => format!("{}={value}", variable.name),
            None => variable.name.clone(),
        });
        let sent = &self.args.environment.0;
        let sent_pairs = sent.iter().map(|(name, value)| format!("{name}={value}"));
        if self.role.is_helper() {
            return asked.chain(sent_pairs).collect();
        }
        let defaults = self.default_env.iter().map(|(name, value)| format!("{name}={value}"));
        let mut env: Vec<_> = defaults.chain(asked).chain(sent_pairs).collect();
        env.push("GITHUB_ACTIONS=true".to_owned());
        let has_ci = env.iter().any(|pair| pair.starts_with("CI="));
        if !has_ci {
            env.push("CI=true".to_owned());
        }
        env
    }
}

/// Returns the ports that the runner asks to publish: none for a container step, as with the docker hook.
/// Steps run beside the job, which may have published the same ports.
fn sent_ports<'a>(
    context: &HookContext<'_>,
    args: &'a ContainerArgs,
    role: PlanRole,
    title: &str,
) -> &'a [String] {
    let ports = &args.port_mappings;
    if role != PlanRole::Step || ports.is_empty() {
        return ports;
    }
    let shown = ports.join(", ");
    context.log.debug(&format!(
        "{title}: the ports {shown} are not published: container steps publish no ports"
    ));
    &[]
}

/// Returns the runner's mounts of a container, without the socket of a container engine, which the runner
/// sends on every machine.
fn runner_mounts<'a>(
    context: &HookContext<'_>,
    args: &'a ContainerArgs,
    role: PlanRole,
    title: &str,
) -> Vec<&'a RequestMount> {
    let mut mounts = Vec::new();
    for mount in &args.system_mounts {
        let Some(source) = mount.source.as_deref().map(Path::new) else { continue };
        if !is_engine_socket(source) {
            mounts.push(mount);
        } else if HostFile::open_trusted(source).is_ok_and(|file| file.kind() == FileType::Socket) {
            let line = format!(
                "{title}: {} is not mounted: it would give the container root on this machine",
                source.display()
            );
            // Once per job is enough, so steps log it only in debug mode.
            if role == PlanRole::Step { context.log.debug(&line) } else { context.log.line(&line) }
        }
    }
    mounts
}

/// A container of the request or of the template, not yet checked.
pub struct ContainerRequest<'a> {
    pub args: &'a ContainerArgs,
    /// Parsed `options:`; an error is reported when the container is checked.
    pub options: Result<CreateOptions, OptionError>,
    pub role: PlanRole,
    /// Host names of the container in the network of the job.
    pub names: Vec<String>,
    /// Network mode of the container whose network this one shares; none if it shares none.
    shared_network: Option<NetworkMode>,
}

/// The containers of a job, not yet checked.
pub struct JobRequest<'a> {
    pub container: Option<ContainerRequest<'a>>,
    pub services: Vec<ContainerRequest<'a>>,
}

impl<'a> ContainerRequest<'a> {
    /// Parses the `options:` of a container. An invalid text is an error of the container's plan.
    pub fn new(args: &'a ContainerArgs, role: PlanRole) -> Self {
        let options = CreateOptions::parse(args.create_options.as_deref().unwrap_or_default());
        ContainerRequest { args, options, role, names: Vec::new(), shared_network: None }
    }

    /// Returns the request of an init container or sidecar of the template. `network` is the network mode of
    /// its main container, if they share the network.
    pub fn helper(
        args: &'a ContainerArgs,
        role: PlanRole,
        name: &str,
        network: Option<NetworkMode>,
    ) -> Self {
        let request = ContainerRequest::new(args, role);
        ContainerRequest { names: vec![name.to_owned()], shared_network: network, ..request }
    }

    /// Returns the image name as requested; empty for a Dockerfile.
    fn image(&self) -> &str {
        match &self.args.source {
            ImageSource::Image(image) => image,
            ImageSource::Dockerfile(_) => "",
        }
    }
}

impl<'a> JobRequest<'a> {
    /// Parses the `options:` of a job's containers and finds the names of its services.
    pub fn new(context: &HookContext<'_>, job: &'a PrepareJob) -> Self {
        let container =
            job.container.as_ref().map(|args| ContainerRequest::new(args, PlanRole::Job));
        let services =
            job.services.iter().map(|args| ContainerRequest::new(args, PlanRole::Service));
        let mut services: Vec<_> = services.collect();
        let none = CreateOptions::default();
        let requested = services.iter().map(|one| {
            let options = one.options.as_ref().unwrap_or(&none);
            RequestedService::new(one.args.context_name.as_deref(), options, one.image())
        });
        let names = service_names::find(context, &requested.collect::<Vec<_>>());
        for (service, names) in services.iter_mut().zip(names) {
            service.names = names;
        }
        JobRequest { container, services }
    }
}
