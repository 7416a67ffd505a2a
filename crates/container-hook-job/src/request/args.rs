//! The arguments of the runner's commands.

use std::collections::BTreeMap;
use std::fmt;

use super::node::RequestNode;
use super::{RequestError, SecretText};

/// The arguments of `prepare_job`: the containers to start.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareJob {
    /// Job container, in which the steps run; none if they run on the host.
    pub container: Option<ContainerArgs>,
    /// Services, in the order of the workflow: the runner matches the response by position.
    pub services: Vec<ContainerArgs>,
}

/// A container as the runner describes it: job container, service or container step.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerArgs {
    pub source: ImageSource,
    /// Entry point; none keeps the image's.
    pub entry_point: Option<String>,
    /// Arguments as sent: split at each blank, even inside quotes. See [`crate::words`].
    pub entry_point_args: Vec<String>,
    /// Working directory in the container; none keeps the image's.
    pub working_directory: Option<String>,
    /// `options:` as written in the workflow.
    pub create_options: Option<String>,
    pub registry: Option<RegistryLogin>,
    pub environment: RequestEnvironment,
    /// Ports to publish, in the notation of `docker run -p`.
    pub port_mappings: Vec<String>,
    pub system_mounts: Vec<RequestMount>,
    /// `volumes:` of the workflow.
    pub user_mounts: Vec<RequestMount>,
    /// Name of the service in the workflow. GitHub's runner does not send it yet; forks and examples do.
    pub context_name: Option<String>,
}

/// The image or Dockerfile of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    Image(String),
    /// A Dockerfile on the host; its directory is the build context.
    Dockerfile(String),
}

/// Credentials for the registry of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryLogin {
    pub username: String,
    pub password: SecretText,
    /// Host of the registry; none for Docker Hub.
    pub server: Option<String>,
}

/// A mount as the runner describes it; [`crate::volumes`] interprets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestMount {
    /// Text that the user wrote under `volumes:`; none for the runner's own mounts.
    pub user_provided: Option<String>,
    /// Path on the host or name of a volume; none for an anonymous volume.
    pub source: Option<String>,
    pub target: String,
    pub read_only: bool,
}

/// The arguments of `run_script_step`: the program to run in the job container.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptStep {
    pub entry_point: String,
    /// Arguments as sent: split at each blank, even inside quotes. See [`crate::words`].
    pub entry_point_args: Vec<String>,
    pub environment: RequestEnvironment,
    /// Directories to prepend to the container's `PATH`, in order.
    pub prepend_path: Vec<String>,
    /// Working directory in the container.
    pub working_directory: Option<String>,
}

/// Environment variables. Their values are often secrets: debug output shows only the names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RequestEnvironment(pub BTreeMap<String, String>);

impl fmt::Debug for RequestEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl PrepareJob {
    pub(super) fn read(args: &RequestNode<'_>) -> Result<Self, RequestError> {
        // ADR 1891 calls the field `jobContainer`.
        let container = args.first_present("container", "jobContainer")?.into_present();
        Ok(PrepareJob {
            container: container.as_ref().map(ContainerArgs::read).transpose()?,
            services: args.field("services")?.list(|service| ContainerArgs::read(&service))?,
        })
    }
}

impl ContainerArgs {
    pub(super) fn read(node: &RequestNode<'_>) -> Result<Self, RequestError> {
        Ok(ContainerArgs {
            source: ImageSource::read(node)?,
            entry_point: node.field("entryPoint")?.non_empty_text()?,
            entry_point_args: node.field("entryPointArgs")?.texts()?,
            working_directory: node.field("workingDirectory")?.non_empty_text()?,
            create_options: node.field("createOptions")?.non_empty_text()?,
            registry: RegistryLogin::read(&node.field("registry")?)?,
            environment: RequestEnvironment::read(&node.field("environmentVariables")?)?,
            port_mappings: port_mappings(&node.field("portMappings")?)?,
            // ADR 1891 calls the field `mountVolumes`.
            system_mounts: node
                .first_present("systemMountVolumes", "mountVolumes")?
                .list(RequestMount::read)?,
            user_mounts: node.field("userMountVolumes")?.list(RequestMount::read)?,
            context_name: node.field("contextName")?.non_empty_text()?,
        })
    }
}

impl ImageSource {
    fn read(node: &RequestNode<'_>) -> Result<Self, RequestError> {
        // As in the reference hook, an image takes precedence over a Dockerfile.
        if let Some(image) = node.field("image")?.non_empty_text()? {
            return Ok(ImageSource::Image(image));
        }
        let dockerfile = node.field("dockerfile")?;
        match dockerfile.non_empty_text()? {
            Some(path) if path.starts_with('/') => Ok(ImageSource::Dockerfile(path)),
            Some(_) => Err(dockerfile.error("must be an absolute path")),
            None => Err(node.error("needs `image` or `dockerfile`, both are missing")),
        }
    }
}

impl RegistryLogin {
    fn read(node: &RequestNode<'_>) -> Result<Option<Self>, RequestError> {
        let Some(username) = node.field("username")?.non_empty_text()? else { return Ok(None) };
        let password = node.field("password")?.text()?.unwrap_or_default();
        let server = node.field("serverUrl")?.non_empty_text()?;
        Ok(Some(RegistryLogin { username, password: SecretText::new(password), server }))
    }
}

impl RequestMount {
    fn read(node: RequestNode<'_>) -> Result<Self, RequestError> {
        Ok(RequestMount {
            user_provided: node.field("userProvidedValue")?.non_empty_text()?,
            source: node.field("sourceVolumePath")?.non_empty_text()?,
            target: node.field("targetVolumePath")?.required_text()?,
            read_only: node.field("readOnly")?.flag()?,
        })
    }
}

impl ScriptStep {
    pub(super) fn read(args: &RequestNode<'_>) -> Result<Self, RequestError> {
        Ok(ScriptStep {
            entry_point: args.field("entryPoint")?.required_text()?,
            entry_point_args: args.field("entryPointArgs")?.texts()?,
            environment: RequestEnvironment::read(&args.field("environmentVariables")?)?,
            // Runners up to 2.293 send one string.
            prepend_path: args.field("prependPath")?.text_or_texts()?,
            working_directory: args.field("workingDirectory")?.non_empty_text()?,
        })
    }
}

impl RequestEnvironment {
    fn read(node: &RequestNode<'_>) -> Result<Self, RequestError> {
        let variables = node.text_map()?;
        match variables.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            Some(name) => {
                Err(node.error(format!("{name:?} cannot be the name of an environment variable")))
            }
            None => Ok(RequestEnvironment(variables)),
        }
    }
}

fn port_mappings(node: &RequestNode<'_>) -> Result<Vec<String>, RequestError> {
    if node.is_object() {
        // An example in ADR 1891 has an object; no runner sends it.
        let problem = "must be a list like [\"8080:80/tcp\"]; an object does not say which port is the host's";
        return Err(node.error(problem));
    }
    node.texts()
}
