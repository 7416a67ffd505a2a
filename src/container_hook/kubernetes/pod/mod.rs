//! Pods of jobs and of container steps: from a request, the policy and the template to what is created.
//!
//! 1. [`asked`] checks what each container asks for.
//! 2. [`assemble`] makes the containers and their pod: programs, variables as references to secrets, ports,
//!    volumes, health checks, and what `options:` mean (one table, [`options`]).
//! 3. The template is merged into it as on one host.
//! 4. [`finish`] gives the pod back what no template takes from it: labels, owner, the first process.
//!
//! No cluster is asked for anything here.

mod agent;
mod asked;
mod assemble;
mod ceilings;
mod error;
mod finish;
mod health;
mod hosts;
mod made;
mod names;
mod options;
mod pod_wide;
mod ports;
mod program;
mod restricted;
mod secrets;
#[cfg(test)]
mod tests;
mod volumes;

pub use error::PodError;

pub use agent::{BIN, INIT, runner_image};
pub use assemble::{job, step};
pub use finish::{MANAGED_BY, RUNNER_LABEL, labels, owner};
pub use made::{ImageFacts, MadePod, StepProgram, WorkVolume};
pub use names::{object, runner_label};
