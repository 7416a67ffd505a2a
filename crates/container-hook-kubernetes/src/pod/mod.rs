//! Pods of jobs and of container steps, from the request, the policy and the template to the manifest.
//!
//! 1. [`requested`] checks the request of each container.
//! 2. [`assemble`] builds the containers and their pod: programs, variables as references to secrets, ports,
//!    volumes, health checks, and the other `options:` (one table, [`options`]).
//! 3. The template is merged as on a single host.
//! 4. [`finish`] restores the fields that no template can change: labels, owner, the first process.
//!
//! No cluster is contacted here.

mod agent;
mod assemble;
mod error;
mod finish;
mod health;
mod hosts;
mod manifest;
mod maximums;
mod names;
mod options;
mod pod_wide;
mod ports;
mod program;
mod requested;
mod requests;
mod restricted;
mod secrets;
#[cfg(test)]
mod tests;
mod volumes;

pub use error::PodError;

pub use agent::{IMAGE, IMAGE_VOLUME, INIT, installed_program, runner_image};
pub use assemble::{job, runtime_class, services_annotation, step};
pub use health::HealthCheck;

pub use finish::{MANAGED_BY, RUNNER_LABEL, labels, owner};
pub use manifest::{ImageFacts, PodManifest, StepProgram, WorkVolume};
pub use names::{object, runner_label};
