//! The arguments of the commands.

use std::collections::BTreeMap;
use std::fmt;

use super::node::Node;
use super::{RequestError, Secret};

/// What `prepare_job` shall start.
#[derive(Clone, Debug, PartialEq)]
pub struct PrepareJob {
    /// The container that the steps run in; none if they run on the host.
    pub container: Option<ContainerArgs>,
    /// The services, in the order of the workflow: the runner matches the answer by position.
    pub services: Vec<ContainerArgs>,
}

/// A container as the runner describes it: job container, service or container step.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ContainerArgs {
    /// What the container is made from.
    pub source: ImageSource,
    /// The entry point that replaces the image's; none keeps it.
    pub entry_point: Option<String>,
    /// The arguments as sent: split at each blank, quotes and all. See [`crate::container_hook::words`].
    pub entry_point_args: Vec<String>,
    /// The working directory in the container; none keeps the image's.
    pub working_directory: Option<String>,
    /// The `options:` of the workflow as written there.
    pub create_options: Option<String>,
    /// The credentials for the image's registry.
    pub registry: Option<Registry>,
    pub environment: Environment,
    /// Ports to publish, each as `docker run -p` takes it.
    pub port_mappings: Vec<String>,
    pub system_mounts: Vec<Mount>,
    /// The `volumes:` of the workflow.
    pub user_mounts: Vec<Mount>,
    /// The service's name in the workflow. No runner sends it yet; forks and examples do.
    pub context_name: Option<String>,
}

/// What a container is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageSource {
    Image(String),
    /// A Dockerfile on the host; its directory is the build context.
    Dockerfile(String),
}

/// Credentials for the registry of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    pub username: String,
    pub password: Secret,
    /// The registry's host; none is Docker Hub.
    pub server: Option<String>,
}

/// A mount as the runner describes it. [`crate::container_hook::volumes`] says what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What the user wrote under `volumes:`; none for the runner's own.
    pub user_provided: Option<String>,
    /// A path on the host or a volume's name; none for an anonymous volume.
    pub source: Option<String>,
    /// The path in the container.
    pub target: String,
    /// Whether it cannot be written to.
    pub read_only: bool,
}

/// What `run_script_step` shall run in the job container.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScriptStep {
    pub entry_point: String,
    /// Its arguments as sent: split at each blank, quotes and all. See [`crate::container_hook::words`].
    pub entry_point_args: Vec<String>,
    pub environment: Environment,
    /// Directories to put before the container's `PATH`, first one first.
    pub prepend_path: Vec<String>,
    /// The working directory in the container.
    pub working_directory: Option<String>,
}

/// Environment variables. Their values are often secrets: debug output shows only the names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(pub BTreeMap<String, String>);

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl PrepareJob {
    pub(super) fn read(args: &Node<'_>) -> Result<Self, RequestError> {
        // `jobContainer` is its name in the text of ADR 1891.
        let container = args.either("container", "jobContainer")?.present();
        Ok(PrepareJob {
            container: container.as_ref().map(ContainerArgs::read).transpose()?,
            services: args.field("services")?.list(|service| ContainerArgs::read(&service))?,
        })
    }
}

impl ContainerArgs {
    pub(super) fn read(node: &Node<'_>) -> Result<Self, RequestError> {
        Ok(ContainerArgs {
            source: ImageSource::read(node)?,
            entry_point: node.field("entryPoint")?.non_empty_text()?,
            entry_point_args: node.field("entryPointArgs")?.texts()?,
            working_directory: node.field("workingDirectory")?.non_empty_text()?,
            create_options: node.field("createOptions")?.non_empty_text()?,
            registry: Registry::read(&node.field("registry")?)?,
            environment: Environment::read(&node.field("environmentVariables")?)?,
            port_mappings: port_mappings(&node.field("portMappings")?)?,
            // `mountVolumes` is its name in the text of ADR 1891.
            system_mounts: node.either("systemMountVolumes", "mountVolumes")?.list(Mount::read)?,
            user_mounts: node.field("userMountVolumes")?.list(Mount::read)?,
            context_name: node.field("contextName")?.non_empty_text()?,
        })
    }
}

impl ImageSource {
    fn read(node: &Node<'_>) -> Result<Self, RequestError> {
        // As the reference does, an image wins over a Dockerfile.
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

impl Registry {
    fn read(node: &Node<'_>) -> Result<Option<Self>, RequestError> {
        let Some(username) = node.field("username")?.non_empty_text()? else { return Ok(None) };
        let password = node.field("password")?.text()?.unwrap_or_default();
        let server = node.field("serverUrl")?.non_empty_text()?;
        Ok(Some(Registry { username, password: Secret::new(password), server }))
    }
}

impl Mount {
    fn read(node: Node<'_>) -> Result<Self, RequestError> {
        Ok(Mount {
            user_provided: node.field("userProvidedValue")?.non_empty_text()?,
            source: node.field("sourceVolumePath")?.non_empty_text()?,
            target: node.field("targetVolumePath")?.required_text()?,
            read_only: node.field("readOnly")?.flag()?,
        })
    }
}

impl ScriptStep {
    pub(super) fn read(args: &Node<'_>) -> Result<Self, RequestError> {
        Ok(ScriptStep {
            entry_point: args.field("entryPoint")?.required_text()?,
            entry_point_args: args.field("entryPointArgs")?.texts()?,
            environment: Environment::read(&args.field("environmentVariables")?)?,
            // Runners up to 2.293 send one string.
            prepend_path: args.field("prependPath")?.text_or_texts()?,
            working_directory: args.field("workingDirectory")?.non_empty_text()?,
        })
    }
}

impl Environment {
    fn read(node: &Node<'_>) -> Result<Self, RequestError> {
        let variables = node.text_map()?;
        match variables.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
            Some(name) => {
                Err(node.error(format!("{name:?} cannot be the name of an environment variable")))
            }
            None => Ok(Environment(variables)),
        }
    }
}

fn port_mappings(node: &Node<'_>) -> Result<Vec<String>, RequestError> {
    if node.is_object() {
        // A sample in the text of ADR 1891 has one; no runner sends it.
        let problem = "must be a list like [\"8080:80/tcp\"]; an object does not say which port is the host's";
        return Err(node.error(problem));
    }
    node.texts()
}
