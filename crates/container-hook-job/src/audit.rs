//! The audit log: job containers, host resources granted to them, and denied requests.
//!
//! Each event is one line of JSON. The events of a container are written before it is created, so no
//! container runs unlogged; a denial is written when the policy denies. Lines hold no secrets: neither
//! environment variables nor arguments.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use jiff::Timestamp;
use oci_hooks_engine::network::PortProtocol;
use oci_hooks_files::append::AppendFile;
use oci_hooks_files::fs::PathError;
use serde::{Deserialize, Serialize};

use super::options::CreateOptions;
use super::policy::Policy;
use super::runner::{CallingRunner, JOB_VARIABLES};
use super::volumes::RequestVolume;

/// The audit log file; without a configured file, events are dropped.
#[derive(Debug, Default)]
pub struct AuditLog {
    file: Option<AppendFile>,
}

/// The audit log could not be written, so the logged operation was not done.
#[derive(Debug, thiserror::Error)]
#[error(
    "no container is started: the audit log (`file` under [audit] of the settings) cannot be written"
)]
pub struct AuditError(#[from] PathError);

/// A line of the log: an event with its time, runner and job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditLine {
    pub time: Timestamp,
    /// `RUNNER_NAME`.
    pub runner: String,
    /// User ID of the runner.
    pub uid: u32,
    /// Job metadata from the runner's environment: `repository`, `run-id` and the like.
    pub job: BTreeMap<String, String>,
    /// Container that the event is about: `job container`, `service redis`.
    pub subject: String,
    #[serde(flatten)]
    pub event: AuditEvent,
}

/// An event of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum AuditEvent {
    /// A container is about to be created.
    Container {
        container: String,
        /// `job`, `service`, `step`, `init` or `sidecar`.
        role: String,
        image: String,
        /// Digest of the image's manifest.
        digest: String,
        /// Program of the OCI runtime.
        runtime: String,
        /// `job`, `host` or `none`.
        network: String,
        /// Set if the container has its own user namespace.
        user_namespace: bool,
        privileged: bool,
        capabilities: Vec<String>,
    },
    /// A volume is mounted into the container.
    Mount {
        container: String,
        /// `bind`, `volume` or `tmpfs`.
        kind: String,
        /// Path on the host; none for `tmpfs`.
        source: Option<String>,
        target: String,
        read_only: bool,
    },
    /// The container gets a device of the host.
    Device { container: String, source: String, target: String },
    /// A container port is published on the host.
    Port {
        container: String,
        /// Address on the host; none for all addresses.
        host_ip: Option<IpAddr>,
        host_port: u16,
        container_port: u16,
        /// `tcp` or `udp`.
        protocol: PortProtocol,
    },
    /// The policy of this machine allowed an option that the default policy denies.
    Allowed { option: String },
    /// The policy denied an option, and nothing was started.
    Denied {
        /// Option, volume, file or container.
        option: String,
        /// Reason, or the setting that would allow the option.
        reason: String,
    },
}

impl AuditEvent {
    /// Returns the value of the `event` key in log lines.
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

    /// Returns the id of the event's container; none for allowed and denied options.
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
    /// Opens the audit log file, if one is configured.
    ///
    /// # Errors
    ///
    /// Fails if it is not a regular file that belongs only to this user.
    pub fn open(path: Option<&Path>) -> Result<Self, AuditError> {
        Ok(AuditLog { file: path.map(AppendFile::open).transpose()? })
    }

    /// Appends a line for each event about `subject`, a container of the job.
    pub fn write(
        &self,
        runner: &CallingRunner,
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

    /// Logs the workflow's options and volumes that the admin allows and the default policy denies.
    pub fn log_allowed(
        &self,
        runner: &CallingRunner,
        subject: &str,
        options: &CreateOptions,
        volumes: &[RequestVolume],
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
