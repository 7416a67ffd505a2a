//! Containers: create, start, exec, logs, health, kill, delete; records that survive any crash.
//!
//! An [`Engine`] creates containers from a [`ContainerSpec`] and finds them by their [`ContainerRecord`]. The record
//! is written before any resource that it describes is created, and removed after all of them, so any process may be
//! killed at any moment, and the next one removes the leftovers.

mod action;
mod create;
mod disk;
mod engine;
mod error;
mod exec;
mod health;
mod host_system;
mod limits;
mod logs;
mod monitor;
mod processes;
mod record;
mod remove;
mod steps;
mod volumes;
mod wait;
mod watch;

pub use create::{
    ContainerSpec, OutputMode, PreparedContainer, RunResult, STEPS_ARGS, allow_nesting, new_id,
};
pub use engine::Engine;
pub use error::ContainerError;
pub use exec::ExecOutcome;
pub use health::{HealthPolicy, HealthVerdict};
pub use host_system::{HostSystem, HostSystemError};
pub use limits::LimitHit;
pub use logs::{LogLine, LogReader, LogTail, LogWriter, StdStream, cut_marker_path, last_lines};
pub use monitor::{MonitorProgram, monitor};
pub use record::{
    ContainerAction, ContainerRecord, ContainerRole, RecordDirectory, RecordedEnd, StepSupport,
    StopPolicy, ids as container_ids, read_json_if_there, records as containers_below, write_json,
    write_record,
};
pub use steps::{
    StepConnection, StepEnd, StepError, StepSignals, StepSocket, directory as step_directory,
};
pub use volumes::{OwnerVolumes, owners_of_volumes};
pub use wait::WaitOutcome;
pub use watch::OutputReceiver;
