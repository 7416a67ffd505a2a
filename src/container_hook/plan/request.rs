//! The containers of a request with their `options:`, parsed once, and their names.

use crate::container_hook::aliases::{ServiceNames, aliases};
use crate::container_hook::context::HookContext;
use crate::container_hook::named_services::{NamedService, match_services};
use crate::container_hook::options::{CreateOptions, NetworkMode, OptionError};
use crate::container_hook::request::{ContainerArgs, ImageSource, PrepareJob};
use crate::container_hook::runner::Runner;
use crate::container_hook::{worker_log, workflow_file};
use crate::image::Reference;
use crate::sys::error::chain;
use crate::sys::fs::PathError;

use super::role::Role;

/// A container of the request or of the template, not yet checked.
pub(in crate::container_hook) struct ContainerRequest<'a> {
    pub(in crate::container_hook) args: &'a ContainerArgs,
    /// What is wrong with them is reported when it is the container's turn.
    pub(in crate::container_hook) options: Result<CreateOptions, OptionError>,
    pub(in crate::container_hook) role: Role,
    /// What other containers call it.
    pub(in crate::container_hook) names: Vec<String>,
    /// The network mode of the container whose network it shares.
    pub(super) shared_network: Option<NetworkMode>,
}

/// The containers of a job.
pub(in crate::container_hook) struct JobRequest<'a> {
    pub(in crate::container_hook) container: Option<ContainerRequest<'a>>,
    pub(in crate::container_hook) services: Vec<ContainerRequest<'a>>,
}

impl<'a> ContainerRequest<'a> {
    pub(in crate::container_hook) fn new(args: &'a ContainerArgs, role: Role) -> Self {
        let options = CreateOptions::parse(args.create_options.as_deref().unwrap_or_default());
        ContainerRequest { args, options, role, names: Vec::new(), shared_network: None }
    }

    /// Returns the request of a container that only the template has. It is connected as the one that
    /// it helps, if `network` is given.
    pub(in crate::container_hook) fn helper(
        args: &'a ContainerArgs,
        role: Role,
        name: &str,
        network: Option<NetworkMode>,
    ) -> Self {
        let request = ContainerRequest::new(args, role);
        ContainerRequest { names: vec![name.to_owned()], shared_network: network, ..request }
    }

    /// Returns the image as it was asked for; nothing for a Dockerfile.
    fn image(&self) -> &str {
        match &self.args.source {
            ImageSource::Image(image) => image,
            ImageSource::Dockerfile(_) => "",
        }
    }

    /// Returns the names that can be had for a service, which the workflow calls like this.
    fn service_names(&self, key: Option<&String>) -> ServiceNames {
        let image = self.image().parse::<Reference>().ok();
        let image = image.as_ref().map_or("", Reference::base_name);
        let key = self.args.context_name.as_ref().or(key).map(String::as_str);
        let none = CreateOptions::default();
        ServiceNames::new(key, self.options.as_ref().unwrap_or(&none), image)
    }
}

impl<'a> JobRequest<'a> {
    /// Parses the `options:` of a job's containers and finds the names of its services.
    pub(in crate::container_hook) fn new(context: &HookContext<'_>, job: &'a PrepareJob) -> Self {
        let container = job.container.as_ref().map(|args| ContainerRequest::new(args, Role::Job));
        let services = job.services.iter().map(|args| ContainerRequest::new(args, Role::Service));
        let mut services: Vec<_> = services.collect();
        let keys = keys(context, &services).unwrap_or_default();
        let known = services.iter().enumerate().map(|(at, one)| one.service_names(keys.get(at)));
        let all = aliases(&known.collect::<Vec<_>>());
        for (service, names) in services.iter_mut().zip(all.names) {
            service.names = names;
        }
        for unused in all.unused {
            let title = Role::Service.title(services[unused.service].names.first());
            context.log.line(&format!("{title}: {unused}"));
        }
        JobRequest { container, services }
    }
}

/// Returns what the workflow calls the services, which the runner does not send.
fn keys(context: &HookContext<'_>, services: &[ContainerRequest<'_>]) -> Option<Vec<String>> {
    if services.iter().all(|service| service.args.context_name.is_some()) {
        return None;
    }
    let images: Vec<_> = services.iter().map(ContainerRequest::image).collect();
    let mut reasons = Vec::new();
    for (source, found) in sources(context.runner) {
        reasons.push(match found {
            Ok(Some(named)) => match match_services(&named, &images) {
                Some(names) => return Some(names),
                None => format!("{source} is about other services"),
            },
            Ok(None) => format!("{source} does not have them"),
            Err(error) => chain(&error),
        });
    }
    context.log.line(&format!(
        "services are reachable by their options and images alone; their names under `services:` are not \
         known: {}",
        reasons.join("; ")
    ));
    None
}

type Found = Result<Option<Vec<NamedService>>, PathError>;

/// Returns where the names of services may stand, the most certain first; each is looked at when it is
/// asked for.
fn sources(runner: &Runner) -> impl Iterator<Item = (&'static str, Found)> {
    let of_job = |name: &str| runner.job.get(name).map(String::as_str);
    let job = [of_job("GITHUB_JOB"), of_job("GITHUB_RUN_ID")];
    let of_log = runner.diag.iter().map(move |diag| {
        ("the log of the runner's worker", worker_log::services(&runner.files, diag, job))
    });
    let of_file = std::iter::once_with(|| {
        ("the workflow's file in the workspace", workflow_file::services(runner))
    });
    of_log.chain(of_file)
}
