//! Containers: create, start, exec, logs, health, kill, delete; records that survive any crash.
//!
//! An [`Engine`] makes them from a [`Spec`] and finds them by their [`Record`]. The record is
//! written before anything it describes is made and removed after all of that is gone, so any
//! process may be killed at any moment, and the next one takes apart what it left.

mod check;
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
mod record;
mod remove;
mod steps;
mod volumes;
mod wait;
mod watch;

pub use create::{Output, Prepared, Ran, STEPS_ARGS, Spec, allow_nesting, new_id};
pub use engine::Engine;
pub use error::ContainerError;
pub use exec::Attended;
pub use health::{Health, Verdict};
pub use host_system::{HostSystem, HostSystemError};
pub use limits::LimitHit;
pub use logs::{LogLine, LogReader, LogTail, LogWriter, Stream, last_lines};
pub use monitor::{MonitorProgram, monitor};
pub use record::{
    Check, Directory, Ended, Record, Role, Stop, TakesSteps, read_json_if_there,
    records as containers_below, write_json, write_record,
};
pub use steps::{
    StepConnection, StepEnd, StepError, StepSignals, StepSocket, directory as step_directory,
};
pub use volumes::{VolumesOf, owners_of_volumes};
pub use wait::Wait;
pub use watch::Attendant;
