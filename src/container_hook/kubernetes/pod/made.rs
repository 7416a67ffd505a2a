//! What is made of a request: objects of the API, and what is left to know about them.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Pod, Secret};

use crate::image::ImageConfig;

/// What registries say of the images of a request, by the name that the request has.
///
/// Of an image that is not in it nothing is known: pods are made without, as far as that is possible.
#[derive(Clone, Debug, Default)]
pub struct ImageFacts(pub BTreeMap<String, ImageConfig>);

impl ImageFacts {
    pub(in crate::container_hook::kubernetes) fn insert(
        &mut self,
        image: &str,
        config: ImageConfig,
    ) {
        self.0.insert(image.to_owned(), config);
    }

    pub(in crate::container_hook::kubernetes) fn get(&self, image: &str) -> Option<&ImageConfig> {
        self.0.get(image)
    }
}

/// A pod that can be created, and all that goes with it.
#[derive(Clone)]
pub struct MadePod {
    pub pod: Pod,
    /// To be created before the pod, which refers to them.
    pub secrets: Vec<Secret>,
    /// In the order of the request.
    pub services: Vec<PodService>,
    /// The ports of the job container, as workflows are told of them.
    pub ports: BTreeMap<String, String>,
    /// What a container step runs; none for a job.
    pub program: Option<StepProgram>,
    /// Where the work directory of the containers is.
    pub work: WorkVolume,
    /// What people should know of what they wrote, each line once.
    pub notes: Vec<String>,
}

/// Where the work directory of the containers of a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkVolume {
    /// On the claim of the runner: it is the same directory.
    Claim,
    /// On the node, empty at first: files are copied.
    Copy,
}

/// A service of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodService {
    /// The name of its container in the pod.
    pub container: String,
    /// The image as the request has it.
    pub image: String,
    /// The name of the request, if it has one.
    pub context_name: Option<String>,
    /// The names that it is reached by, the one to show first.
    pub names: Vec<String>,
    /// The port to connect to for each port of the container.
    pub ports: BTreeMap<String, String>,
}

/// The program of a container step, which the agent starts.
#[derive(Clone, PartialEq, Eq)]
pub struct StepProgram {
    /// The program and its arguments; never empty.
    pub args: Vec<String>,
    /// What is said over the container's own environment.
    pub env: Vec<(String, String)>,
    /// The working directory; none for the container's own.
    pub directory: Option<String>,
}

impl fmt::Debug for StepProgram {
    /// Shows of the environment only the names: values are often secrets.
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
