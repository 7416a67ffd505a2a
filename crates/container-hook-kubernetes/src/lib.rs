//! Runs the jobs of GitHub's container hooks as pods of a Kubernetes cluster.
//!
//! [`KubernetesBackend`] runs the commands of a job ([`container_hook_job`]). The first process of the job's container
//! is our agent ([`oci_hooks_init`]). It is reached by an exec stream, over which it starts steps and exchanges files;
//! a step outlives its stream, and the next stream attaches to it.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod admin;
mod agent;
mod audit;
mod backend;
mod build;
mod cleanup;
mod client;
mod commands;
mod container_step;
mod error;
mod facts;
mod files;
mod fill;
mod image_volumes;
mod interrupts;
mod own_pod;
mod pod;
mod prepare;
mod script_step;
mod services;
#[cfg(test)]
mod testing;
mod wait;

pub use backend::{KubernetesBackend, KubernetesParts, SignalSource};
pub use build::BuildError;
pub use client::{
    ApiOperation, ApiRejection, CallFault, ClusterClient, ClusterError, ExecEnd, ExecOutput,
    ExecStream, RetryPolicy, ServerVersion, Verb,
};
pub use error::SignalError;
pub use fill::PodFiles;
pub use image_volumes::NoImageVolume;
pub use own_pod::PodIdentity;
pub use pod::PodError;
pub use wait::{ContainerEnd, PodFault, WaitError};
