//! Runs the jobs of GitHub's container hooks on this host, with an OCI runtime.
//!
//! [`EngineBackend`] runs the commands of a job ([`container_hook_job`]). The containers of a request are checked and
//! planned before the first is created, then launched with the init containers and sidecars of the template.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod audit;
mod backend;
mod build;
mod cleanup_job;
mod commands;
mod confine;
mod error;
mod fetch;
mod job;
mod launch;
mod maximums;
mod mounts;
mod network;
mod ownership;
mod plan;
pub mod pod;
mod prepare_job;
mod run_container_step;
mod run_script_step;
mod services;
mod settings;
mod share;
mod unenforced;
mod volumes;

pub use backend::EngineBackend;
pub use build::{BuildError, remove_builds};
pub use cleanup_job::{AbandonedJobs, remove_abandoned};
pub use error::ImageError;
pub use job::{JobRecord, Peer, WritableDirectories};
pub use run_script_step::DirectStep;
pub use settings::{BuildSettings, EngineSettings, JobRootFs, LimitSettings, NewPrivileges};
pub use volumes::{RemovedVolumes, RunnerVolume, RunnerVolumes, VolumeUser};
