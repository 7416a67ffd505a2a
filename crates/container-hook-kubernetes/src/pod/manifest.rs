//! The result of a request: API objects and the facts for the response.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Pod, Secret};
use oci_hooks_image::ImageConfig;

use super::health::HealthCheck;

/// Image configurations from registries, by the name in the request.
///
/// A missing image is unknown: pods are created without its configuration as far as possible.
#[derive(Clone, Debug, Default)]
pub struct ImageFacts(pub BTreeMap<String, ImageConfig>);

impl ImageFacts {
    pub(crate) fn insert(&mut self, image: &str, config: ImageConfig) {
        self.0.insert(image.to_owned(), config);
    }

    pub(crate) fn get(&self, image: &str) -> Option<&ImageConfig> {
        self.0.get(image)
    }
}

/// A pod that can be created, with its secrets.
#[derive(Clone)]
pub struct PodManifest {
    pub pod: Pod,
    /// Secrets that the pod refers to, to be created before it.
    pub secrets: Vec<Secret>,
    /// Services in the order of the request.
    pub services: Vec<PodService>,
    /// Ports of the job container, as reported to workflows.
    pub ports: BTreeMap<String, String>,
    /// Program of a container step; `None` for a job.
    pub program: Option<StepProgram>,
    /// Volume of the work directory.
    pub work: WorkVolume,
    /// Notes for the author of the workflow, without duplicates.
    pub notes: Vec<String>,
    /// Parts of the request that are ignored or may not work.
    pub warnings: Vec<String>,
    /// Health checks of services, which the hook also runs while it waits for the pod.
    pub checks: Vec<HealthCheck>,
}

/// Volume of a pod's work directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkVolume {
    /// The volume of the runner's claim. Its files are those of the runner, so none are copied.
    Claim,
    /// An empty directory on the node. Files are copied between it and the runner.
    Copy,
}

/// A service of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodService {
    /// Name of the container in the pod.
    pub container: String,
    /// Image name in the request.
    pub image: String,
    /// Name of the service in the request, if it has one.
    pub context_name: Option<String>,
    /// Host names, the preferred one first.
    pub names: Vec<String>,
    /// Port to connect to for each port of the container.
    pub ports: BTreeMap<String, String>,
}

/// Program of a container step, which the agent starts.
#[derive(Clone, PartialEq, Eq)]
pub struct StepProgram {
    /// Program and arguments; never empty.
    pub args: Vec<String>,
    /// Variables that override the container's own environment.
    pub env: Vec<(String, String)>,
    /// Working directory; `None` for the container's own.
    pub directory: Option<String>,
}

impl fmt::Debug for StepProgram {
    /// Omits the values of the environment, which are often secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.iter().map(|(name, _)| name).collect();
        let StepProgram { args, directory, .. } = self;
        f.debug_struct("StepProgram")
            .field("args", args)
            .field("env", &names)
            .field("directory", directory)
            .finish()
    }
}
