//! The audit log: who had which container, with what of the host, and what was denied to them.
//!
//! One line of JSON an event. What is given to a container is written before it is made, so there is
//! none without its lines; what the policy denies is written when it does. Nothing secret is in them:
//! neither variables nor arguments.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::options::CreateOptions;
use super::policy::Policy;
use super::runner::{JOB_VARIABLES, Runner};
use super::volumes::Volume;
use crate::network::Protocol;
use crate::sys::append::AppendFile;
use crate::sys::fs::PathError;

/// The file that events are written to, if the admin wants any.
#[derive(Debug, Default)]
pub struct AuditLog {
    file: Option<AppendFile>,
}

/// A line could not be written, and what it is about was not done.
#[derive(Debug, thiserror::Error)]
#[error(
    "the audit log (`file` under [audit] of the settings) cannot be written: nothing is started without it"
)]
pub struct AuditError(#[from] PathError);

/// A line of the log: an event with when, where and in which job it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditLine {
    pub time: Timestamp,
    /// `RUNNER_NAME`.
    pub runner: String,
    /// The id of the runner's user.
    pub uid: u32,
    /// What the runner's environment says of the job: `repository`, `run-id` and the like.
    pub job: BTreeMap<String, String>,
    /// Which of the job's containers it is about: `job container`, `service redis`.
    pub subject: String,
    #[serde(flatten)]
    pub event: AuditEvent,
}

/// Something that the admin may want to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum AuditEvent {
    /// A container is about to be made.
    Container {
        container: String,
        /// `job`, `service`, `step`, `init` or `sidecar`.
        role: String,
        /// The image by the name that was asked for.
        image: String,
        /// The digest of its manifest.
        digest: String,
        /// The program that runs it.
        runtime: String,
        /// `job`, `host` or `none`.
        network: String,
        /// Whether it has a user namespace of its own.
        user_namespace: bool,
        privileged: bool,
        capabilities: Vec<String>,
    },
    /// Something is mounted into it.
    Mount {
        container: String,
        /// `bind`, `volume` or `tmpfs`.
        kind: String,
        /// The path on the host; none for memory.
        source: Option<String>,
        /// The path in the container.
        target: String,
        /// Whether it can only be read.
        read_only: bool,
    },
    /// It gets a device of the host.
    Device {
        container: String,
        /// The path on the host.
        source: String,
        /// The path in the container.
        target: String,
    },
    /// A port of the host leads to it.
    Port {
        container: String,
        /// The host's address; all of them if none.
        host_ip: Option<IpAddr>,
        host_port: u16,
        container_port: u16,
        /// `tcp` or `udp`.
        protocol: Protocol,
    },
    /// The policy of this machine allowed what is not allowed by default.
    Allowed { option: String },
    /// The policy did not allow it, and nothing was started.
    Denied {
        /// The option, volume, file or container.
        option: String,
        /// Why, or what would allow it.
        reason: String,
    },
}

impl AuditEvent {
    /// Returns which one it is, as lines have it.
    pub fn name(&self) -> &'static str {
        match self {
            AuditEvent::Container { .. } => "container",
            AuditEvent::Mount { .. } => "mount",
            AuditEvent::Device { .. } => "device",
            AuditEvent::Port { .. } => "port",
            AuditEvent::Allowed { .. } => "allowed",
            AuditEvent::Denied { .. } => "denied",
        }
    }

    /// Returns the id of the container that it is about; none before there is one.
    pub fn container(&self) -> Option<&str> {
        match self {
            AuditEvent::Container { container, .. }
            | AuditEvent::Mount { container, .. }
            | AuditEvent::Device { container, .. }
            | AuditEvent::Port { container, .. } => Some(container),
            AuditEvent::Allowed { .. } | AuditEvent::Denied { .. } => None,
        }
    }
}

impl AuditLog {
    /// Opens the file, if there is to be one.
    ///
    /// # Errors
    ///
    /// Fails if it is not a regular file that belongs to this user alone.
    pub fn open(path: Option<&Path>) -> Result<Self, AuditError> {
        Ok(AuditLog { file: path.map(AppendFile::open).transpose()? })
    }

    pub(super) fn write(
        &self,
        runner: &Runner,
        subject: &str,
        events: impl IntoIterator<Item = AuditEvent>,
    ) -> Result<(), AuditError> {
        let Some(file) = &self.file else { return Ok(()) };
        let job = JOB_VARIABLES.iter().filter_map(|(variable, key)| {
            Some(((*key).to_owned(), runner.job.get(*variable)?.clone()))
        });
        let (time, job) = (Timestamp::now(), job.collect::<BTreeMap<_, _>>());
        let mut lines = String::new();
        for event in events {
            let line = AuditLine {
                time,
                runner: runner.name.clone(),
                uid: runner.user.0,
                job: job.clone(),
                subject: subject.to_owned(),
                event,
            };
            lines += &serde_json::to_string(&line).expect("names and plain values");
            lines.push('\n');
        }
        if lines.is_empty() { Ok(()) } else { Ok(file.append(lines.as_bytes())?) }
    }

    /// Writes down what this machine's policy allows of what was written in the workflow, where the
    /// default would not.
    pub(super) fn allowed(
        &self,
        runner: &Runner,
        subject: &str,
        options: &CreateOptions,
        volumes: &[Volume],
    ) -> Result<(), AuditError> {
        if self.file.is_none() {
            return Ok(());
        }
        let default = Policy::default();
        let mut beyond = options.clone().denials(&default);
        beyond.extend(
            volumes.iter().filter_map(|volume| default.check_volume(&mut volume.clone()).err()),
        );
        let events = beyond.into_iter().map(|beyond| AuditEvent::Allowed { option: beyond.option });
        self.write(runner, subject, events)
    }
}
