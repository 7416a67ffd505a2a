//! Maximums for containers, `[policy.max]`: a workflow's higher limits are lowered and logged, or denied.

use std::collections::BTreeMap;

use oci_hooks_files::quantity::{ByteSize, Cpus};
use serde::{Deserialize, Serialize};

use super::{Policy, PolicyDenial, PolicyError};
use crate::options::{CreateOptions, SwapLimit, ULIMITS};

/// The usual period of a CPU quota, in microseconds.
const PERIOD: u64 = 100_000;

/// A limit of a container that exceeds the policy's maximum.
pub struct ExceededMaximum {
    /// Requested limit, for messages, such as `--cpus 4`.
    pub asked: String,
    /// Setting with the maximum, as written in the file.
    pub entry: String,
    pub table: MaxTable,
}

impl ExceededMaximum {
    /// Returns an exceeded maximum of memory; `most` is in bytes.
    pub fn memory(asked: String, most: u64, table: MaxTable) -> Self {
        ExceededMaximum { asked, entry: format!("memory = \"{}\"", ByteSize(most)), table }
    }

    /// Returns an exceeded maximum of CPUs; `most` is in billionths of a CPU.
    pub fn cpus(asked: String, most: u64, table: MaxTable) -> Self {
        ExceededMaximum { asked, entry: format!("cpus = {}", count(most)), table }
    }
}

impl Policy {
    /// Lowers the options of a workflow to the maximums; returns a line for each option that was too high.
    ///
    /// # Errors
    ///
    /// Returns all options that were too high if `when-exceeded` is `deny`.
    pub fn lower_options(&self, options: &mut CreateOptions) -> Result<Vec<String>, PolicyError> {
        self.report_exceeded(lower_requested(self, options))
    }

    /// Returns a line for each exceeded maximum.
    ///
    /// # Errors
    ///
    /// Returns all exceeded maximums if `when-exceeded` is `deny`.
    pub fn report_exceeded(
        &self,
        exceeded: Vec<ExceededMaximum>,
    ) -> Result<Vec<String>, PolicyError> {
        let is_denied = self.max.when_exceeded == WhenExceeded::Deny && !exceeded.is_empty();
        let denials = exceeded.into_iter().map(|ExceededMaximum { asked, entry, table }| {
            let section = self.section(table.name());
            PolicyDenial {
                option: asked,
                advice: format!("the maximum is `{entry}` under {section}"),
            }
        });
        if is_denied {
            return Err(PolicyError(denials.collect()));
        }
        Ok(denials.map(|one| format!("{} is lowered: {}", one.option, one.advice)).collect())
    }
}

/// Lowers the options of a workflow; returns the limits that were too high.
fn lower_requested(policy: &Policy, options: &mut CreateOptions) -> Vec<ExceededMaximum> {
    let max = &policy.max;
    let mut exceeded = Vec::new();
    let resources = &mut options.resources;
    if let Some((asked, (most, table))) =
        exceeded_maximum(resources.memory_bytes, max.memory_bytes())
    {
        exceeded.push(ExceededMaximum::memory(
            format!("--memory {}", ByteSize(asked)),
            most,
            table,
        ));
        resources.memory_bytes = Some(most);
    }
    if let Some(size) = max.memory {
        let most = size.0.saturating_mul(2);
        let asked = match resources.memory_swap {
            Some(SwapLimit::Unlimited) => Some("-1".to_owned()),
            Some(SwapLimit::Bytes(bytes)) if bytes > most => Some(ByteSize(bytes).to_string()),
            _ => None,
        };
        if let Some(asked) = asked {
            let asked = format!("--memory-swap {asked}");
            exceeded.push(ExceededMaximum::memory(asked, size.0, MaxTable::Container));
            // Without `--memory-swap`, a container has as much swap as memory.
            resources.memory_swap = None;
        }
    }
    if let (Some(least), Some(limit)) =
        (&mut resources.memory_reservation_bytes, resources.memory_bytes)
    {
        *least = (*least).min(limit);
    }
    let quota = resources.cpu_quota.and_then(|quota| u64::try_from(quota).ok());
    let period = resources.cpu_period.unwrap_or(PERIOD);
    let by_quota = quota.map(|quota| quota.saturating_mul(1_000_000_000) / period);
    if let Some((asked, (most, table))) =
        exceeded_maximum(resources.nano_cpus.or(by_quota), max.nano_cpus())
    {
        exceeded.push(ExceededMaximum::cpus(format!("--cpus {}", count(asked)), most, table));
        (resources.nano_cpus, resources.cpu_quota, resources.cpu_period) = (Some(most), None, None);
    }
    let pids = resources.pids.map(|pids| if pids == 0 { u64::MAX } else { pids });
    if let Some((asked, (most, table))) = exceeded_maximum(pids, max.pids()) {
        let asked = if asked == u64::MAX { "-1".to_owned() } else { asked.to_string() };
        let (asked, entry) = (format!("--pids-limit {asked}"), format!("pids = {most}"));
        exceeded.push(ExceededMaximum { asked, entry, table });
        resources.pids = Some(most);
    }
    let shm_size = max.shm_size.map(|size| (size.0, MaxTable::Container));
    if let Some((asked, (most, table))) = exceeded_maximum(options.shm_size_bytes, shm_size) {
        let entry = format!("shm-size = \"{}\"", ByteSize(most));
        exceeded.push(ExceededMaximum {
            asked: format!("--shm-size {}", ByteSize(asked)),
            entry,
            table,
        });
        options.shm_size_bytes = Some(most);
    }
    for ulimit in &mut options.ulimits {
        let most = max.ulimits.iter().find(|(name, _)| name.as_str() == ulimit.name);
        if let Some((_, most)) = most.filter(|(_, most)| ulimit.hard > **most) {
            exceeded.push(ExceededMaximum {
                asked: format!("--ulimit {ulimit}"),
                entry: format!("ulimits = {{ {} = {most} }}", ulimit.name),
                table: MaxTable::Container,
            });
            (ulimit.soft, ulimit.hard) = (ulimit.soft.min(*most), *most);
        }
    }
    exceeded
}

/// Returns the requested amount and the maximum if the maximum is lower.
pub fn exceeded_maximum(
    asked: Option<u64>,
    most: Option<(u64, MaxTable)>,
) -> Option<(u64, (u64, MaxTable))> {
    asked.zip(most).filter(|(asked, (most, _))| asked > most)
}

/// Formats a number of CPUs for the settings file.
fn count(nanos: u64) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let rest = format!("{rest:09}");
    let rest = rest.trim_end_matches('0');
    if rest.is_empty() { whole.to_string() } else { format!("{whole}.{rest}") }
}

/// Maximums for each container of the workflow and the template, `[policy.max]`. An unset key sets
/// no maximum.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ContainerMax {
    /// Action for a container that asks for more than a maximum.
    pub when_exceeded: WhenExceeded,
    /// Maximum memory; memory and swap together are limited to twice as much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Size of `/dev/shm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<ByteSize>,
    /// Limits of each process, by the names of `--ulimit`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ulimits: BTreeMap<UlimitName, u64>,
    /// Maximums for all containers of a job together, or of a step without a job.
    #[serde(skip_serializing_if = "JobMax::is_empty")]
    pub job: JobMax,
}

/// The action for a container that asks for more than the maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenExceeded {
    /// Lowers the limit to the maximum and logs it in the job.
    #[default]
    Clamp,
    /// Denies the container; nothing is started.
    Deny,
}

/// Maximums for all containers of a job together, `[policy.max.job]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct JobMax {
    /// Maximum memory; memory and swap together are limited to twice as much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Number of processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

/// The name of a limit of `setrlimit(2)`, such as `nofile`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct UlimitName(String);

impl UlimitName {
    /// Returns the name for `--ulimit`.
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

impl ContainerMax {
    /// Returns whether no maximum is set.
    pub fn is_empty(&self) -> bool {
        *self == ContainerMax::default()
    }

    /// Returns the maximum memory of a container, and the table that sets it.
    pub fn memory_bytes(&self) -> Option<(u64, MaxTable)> {
        lower_maximum(self.memory.map(|size| size.0), self.job.memory.map(|size| size.0))
    }

    /// Returns the maximum CPUs of a container, in billionths of a CPU.
    pub fn nano_cpus(&self) -> Option<(u64, MaxTable)> {
        lower_maximum(self.cpus.map(Cpus::nanos), self.job.cpus.map(Cpus::nanos))
    }

    /// Returns the maximum number of processes of a container.
    pub fn pids(&self) -> Option<(u64, MaxTable)> {
        lower_maximum(self.pids, self.job.pids)
    }
}

impl JobMax {
    /// Returns whether no maximum is set.
    pub fn is_empty(&self) -> bool {
        *self == JobMax::default()
    }
}

/// A table of the settings that sets maximums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxTable {
    Container,
    Job,
}

impl MaxTable {
    /// Returns the name of the table.
    pub fn name(self) -> &'static str {
        match self {
            MaxTable::Container => "policy.max",
            MaxTable::Job => "policy.max.job",
        }
    }
}

fn lower_maximum(container: Option<u64>, job: Option<u64>) -> Option<(u64, MaxTable)> {
    let all =
        [container.map(|most| (most, MaxTable::Container)), job.map(|most| (most, MaxTable::Job))];
    all.into_iter().flatten().min_by_key(|(most, _)| *most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(max: &str) -> Policy {
        toml::from_str(&format!("[max]\n{max}")).unwrap()
    }

    fn lower_with_max(max: &str, text: &str) -> (CreateOptions, Vec<String>) {
        let mut options = CreateOptions::parse(text).unwrap();
        let exceeded = lower_requested(&policy(max), &mut options);
        (options, exceeded.into_iter().map(|one| format!("{} {}", one.asked, one.entry)).collect())
    }

    #[test]
    fn exceeding_options_are_lowered_and_reported() {
        let max = "memory = \"1GiB\"\ncpus = 1.5\npids = 100\nshm-size = \"1MiB\"\n\
                   ulimits = { nofile = 1000 }\n[max.job]\nmemory = \"2GiB\"\npids = 50";
        let (options, said) = lower_with_max(
            max,
            "--memory 64g --memory-swap -1 --memory-reservation 32g --cpus 8 --pids-limit -1 \
             --shm-size 2g --ulimit nofile=500:-1 --ulimit core=-1",
        );
        assert_eq!(
            said,
            [
                "--memory 64GiB memory = \"1GiB\"",
                "--memory-swap -1 memory = \"1GiB\"",
                "--cpus 8 cpus = 1.5",
                "--pids-limit -1 pids = 50",
                "--shm-size 2GiB shm-size = \"1MiB\"",
                "--ulimit nofile=500:-1 ulimits = { nofile = 1000 }",
            ]
        );
        let resources = &options.resources;
        assert_eq!(resources.memory_bytes, Some(1 << 30));
        assert_eq!(resources.memory_reservation_bytes, Some(1 << 30));
        assert_eq!((resources.memory_swap, resources.pids), (None, Some(50)));
        assert_eq!(
            (resources.nano_cpus, options.shm_size_bytes),
            (Some(1_500_000_000), Some(1 << 20))
        );
        let nofile = &options.ulimits[0];
        assert_eq!((nofile.soft, nofile.hard), (500, 1000));
    }

    #[test]
    fn memory_and_swap_are_limited_together() {
        let (options, said) = lower_with_max("memory = \"1GiB\"", "--memory 1g --memory-swap 3g");
        assert_eq!(said, ["--memory-swap 3GiB memory = \"1GiB\""]);
        assert_eq!(options.resources.memory_swap, None);
        assert!(lower_with_max("memory = \"1GiB\"", "--memory 1g --memory-swap 2g").1.is_empty());
    }

    #[test]
    fn cpu_quota_counts_as_cpus() {
        let (options, said) = lower_with_max("cpus = 2", "--cpu-quota 300000");
        assert_eq!(said, ["--cpus 3 cpus = 2"]);
        assert_eq!(
            (options.resources.cpu_quota, options.resources.nano_cpus),
            (None, Some(2_000_000_000))
        );
        assert!(lower_with_max("cpus = 2", "--cpu-quota 300000 --cpu-period 200000").1.is_empty());
    }

    #[test]
    fn lower_values_are_unchanged() {
        let all = "--memory 64m --memory-swap 100m --cpus 0.5 --pids-limit 10 --shm-size 4k";
        let max = "memory = \"64MiB\"\ncpus = 1\npids = 10\nshm-size = \"64MiB\"";
        let (options, said) = lower_with_max(max, all);
        assert_eq!((options, said), (CreateOptions::parse(all).unwrap(), Vec::new()));
        assert!(lower_with_max("", "--memory 64g --cpus 100 --pids-limit 0").1.is_empty());
    }
}
