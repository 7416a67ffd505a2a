//! The backend of a cluster: jobs and container steps as pods of Kubernetes.
//!
//! `commands` is what the runner asks for, `backend` what each command uses. Our own first process (`sys/init`) is that
//! of the job's container. An exec stream reaches it (`agent`), by which it starts steps and exchanges files; a step
//! outlives its stream, and is asked again by the next one.

pub mod admin;
mod agent;
mod audit;
mod backend;
mod build;
mod cleanup;
mod client;
mod commands;
mod container_step;
mod early;
mod error;
mod facts;
mod files;
mod fill;
mod interrupts;
mod own_pod;
mod pod;
mod prepare;
mod script_step;
mod settings;
#[cfg(test)]
mod testing;
mod wait;

pub use backend::{KubernetesBackend, KubernetesParts, SignalSource};
pub use build::BuildError;
pub use client::{
    Cluster, ClusterError, ClusterOpener, Exec, ExecEnd, ExecOutput, Fault, Operation, Refusal,
    RetryPolicy, ServerVersion, Verb,
};
pub use error::KubernetesError;
pub use fill::Filling;
pub use own_pod::PodIdentity;
pub use pod::PodError;
pub use settings::{Back, BuildSettings, KubernetesSettings, Work};
pub use wait::{ContainerEnd, PodFault, WaitError};
