//! The backend of one host: the containers of jobs, by an OCI runtime.
//!
//! `commands` is what the runner asks for, `backend` what each command uses. A container of the request
//! is checked and planned (`plan`) before anything is made, then launched with its helpers (`launch`).

mod audit;
mod backend;
mod build;
mod ceilings;
mod cleanup_job;
mod commands;
mod confine;
mod error;
mod fetch;
mod give_back;
mod job;
mod launch;
mod lend;
mod mounts;
mod network;
mod plan;
pub mod pod;
mod prepare_job;
mod run_container_step;
mod run_script_step;
mod services;
mod settings;
mod unkept;
mod volumes;

pub use backend::EngineBackend;
pub use build::{BuildError, RemovedBuilds, remove_builds};
pub use cleanup_job::{Abandoned, remove_abandoned};
pub use error::EngineError;
pub use job::{Job, Lent, Peer};
pub use run_script_step::DirectStep;
pub use settings::{BuildOptions, EngineSettings, JobSystem, NewPrivileges};
pub use volumes::{RemovedVolumes, RunnerVolume, RunnerVolumes, VolumeUser};
