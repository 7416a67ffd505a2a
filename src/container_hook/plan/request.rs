//! The containers of a request with their `options:`, parsed once, and their names.

use crate::container_hook::aliases::{ServiceNames, aliases};
use crate::container_hook::context::HookContext;
use crate::container_hook::error::HookError;
use crate::container_hook::options::{CreateOptions, NetworkMode, OptionError};
use crate::container_hook::request::{ContainerArgs, ImageSource, PrepareJob};
use crate::container_hook::worker_log::service_names;
use crate::image::Reference;

use super::role::Role;

/// A container of the request or of the template, not yet checked.
pub(in crate::container_hook) struct ContainerRequest<'a> {
    pub(super) args: &'a ContainerArgs,
    /// What is wrong with them is reported when it is the container's turn.
    pub(super) options: Result<CreateOptions, OptionError>,
    pub(super) role: Role,
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

    /// Returns the names that can be had for a service; `in_log` is that of the worker's log.
    fn service_names(&self, in_log: Option<String>) -> ServiceNames {
        let image = match &self.args.source {
            ImageSource::Image(image) => image.parse::<Reference>().ok(),
            ImageSource::Dockerfile(_) => None,
        };
        let image = image.as_ref().map_or("", Reference::base_name);
        let name = self.args.context_name.clone().or(in_log);
        let none = CreateOptions::default();
        ServiceNames::new(name.as_deref(), self.options.as_ref().unwrap_or(&none), image)
    }
}

impl<'a> JobRequest<'a> {
    /// Parses the `options:` of a job's containers and finds the names of its services.
    pub(in crate::container_hook) fn new(
        context: &HookContext<'_>,
        job: &'a PrepareJob,
    ) -> Result<Self, HookError> {
        let container = job.container.as_ref().map(|args| ContainerRequest::new(args, Role::Job));
        let services = job.services.iter().map(|args| ContainerRequest::new(args, Role::Service));
        let mut services: Vec<_> = services.collect();
        let in_log = match &context.runner.diag {
            Some(diag) => service_names(&context.runner.files, diag, services.len())?,
            None => None,
        };
        let mut in_log = in_log.into_iter().flatten();
        let known = services.iter().map(|service| {
            // A name that the request has is none of the log's.
            let in_log = service.args.context_name.is_none().then(|| in_log.next()).flatten();
            service.service_names(in_log)
        });
        let names = aliases(&known.collect::<Vec<_>>());
        for (service, names) in services.iter_mut().zip(names) {
            service.names = names;
        }
        Ok(JobRequest { container, services })
    }
}
