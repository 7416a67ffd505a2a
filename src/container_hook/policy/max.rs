//! What no container exceeds, and no job with all its containers, whoever asks for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::container_hook::options::ULIMITS;
use crate::sys::cpus::Cpus;
use crate::sys::quantity::Size;

/// What no container exceeds, `[policy.max]`: one of the workflow or of the template. What is not said has
/// no ceiling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Max {
    /// What becomes of a container that asks for more.
    pub when_exceeded: WhenExceeded,
    /// Memory, and as much swap again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// The size of `/dev/shm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<Size>,
    /// Limits of each process, by the names that `--ulimit` has.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ulimits: BTreeMap<UlimitName, u64>,
    /// What all containers of a job, or of a step without a job, have together.
    #[serde(skip_serializing_if = "MaxOfJob::is_empty")]
    pub job: MaxOfJob,
}

/// What becomes of a container that asks for more than it may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenExceeded {
    /// It gets what it may have, and the log of the job says so.
    #[default]
    Clamp,
    /// Nothing is started.
    Deny,
}

/// What all containers of a job have together, `[policy.max.job]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MaxOfJob {
    /// Memory, and as much swap again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

/// The name of a limit of `setrlimit(2)`, as `nofile`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct UlimitName(String);

impl UlimitName {
    /// Returns the name, as `--ulimit` has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for UlimitName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match ULIMITS.contains(&name.as_str()) {
            true => Ok(UlimitName(name)),
            false => Err(format!("unknown ulimit: expected one of {}", ULIMITS.join(", "))),
        }
    }
}

impl Max {
    /// Returns whether nothing has a ceiling.
    pub fn is_empty(&self) -> bool {
        *self == Max::default()
    }

    /// Returns the most memory that a container can have, and the table that says so.
    pub(in crate::container_hook) fn memory_bytes(&self) -> Option<(u64, Table)> {
        least(self.memory.map(|size| size.0), self.job.memory.map(|size| size.0))
    }

    /// Returns the most CPUs that a container can have, in billionths of one.
    pub(in crate::container_hook) fn nano_cpus(&self) -> Option<(u64, Table)> {
        least(self.cpus.map(Cpus::nanos), self.job.cpus.map(Cpus::nanos))
    }

    /// Returns the most processes that a container can have.
    pub(in crate::container_hook) fn pids(&self) -> Option<(u64, Table)> {
        least(self.pids, self.job.pids)
    }
}

impl MaxOfJob {
    /// Returns whether nothing has a ceiling.
    pub fn is_empty(&self) -> bool {
        *self == MaxOfJob::default()
    }
}

/// Which table of the settings has a ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::container_hook) enum Table {
    Container,
    Job,
}

impl Table {
    /// Returns its name.
    pub(in crate::container_hook) fn name(self) -> &'static str {
        match self {
            Table::Container => "policy.max",
            Table::Job => "policy.max.job",
        }
    }
}

fn least(container: Option<u64>, job: Option<u64>) -> Option<(u64, Table)> {
    let all = [container.map(|most| (most, Table::Container)), job.map(|most| (most, Table::Job))];
    all.into_iter().flatten().min_by_key(|(most, _)| *most)
}
