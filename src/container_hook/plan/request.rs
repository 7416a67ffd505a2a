//! The containers of a request with their `options:`, parsed once, and their names.

use crate::container_hook::context::HookContext;
use crate::container_hook::options::{CreateOptions, NetworkMode, OptionError};
use crate::container_hook::request::{ContainerArgs, ImageSource, PrepareJob};
use crate::container_hook::service_names::{self, RequestedService};

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
}

impl<'a> JobRequest<'a> {
    /// Parses the `options:` of a job's containers and finds the names of its services.
    pub(in crate::container_hook) fn new(context: &HookContext<'_>, job: &'a PrepareJob) -> Self {
        let container = job.container.as_ref().map(|args| ContainerRequest::new(args, Role::Job));
        let services = job.services.iter().map(|args| ContainerRequest::new(args, Role::Service));
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
