//! What no container exceeds, `[policy.max]`: what a workflow asks for beyond that is lowered and told, or
//! denied.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Denied, Policy, PolicyError};
use crate::container_hook::options::{CreateOptions, Swap, ULIMITS};
use crate::sys::quantity::{Cpus, Size};

/// The usual period of a CPU quota, in microseconds.
const PERIOD: u64 = 100_000;

/// Something that a container asks more of than it may have.
pub struct Exceeded {
    pub asked: String,
    /// The setting, as it is written.
    pub entry: String,
    pub table: Table,
}

impl Policy {
    /// Lowers what a workflow asks for to what a container may have; returns a line for each option that was
    /// too high.
    ///
    /// # Errors
    ///
    /// Fails with all of them if the policy wants that.
    pub(in crate::container_hook) fn lower(
        &self,
        options: &mut CreateOptions,
    ) -> Result<Vec<String>, PolicyError> {
        self.exceeded(asked(self, options))
    }

    /// Returns a line for each of what was too high.
    ///
    /// # Errors
    ///
    /// Fails with all of them if the policy wants that.
    pub(in crate::container_hook) fn exceeded(
        &self,
        exceeded: Vec<Exceeded>,
    ) -> Result<Vec<String>, PolicyError> {
        let advice = |one: &Exceeded| {
            let Exceeded { entry, table, .. } = one;
            let section = self.section(table.name());
            format!("the most is `{entry}` under {section}")
        };
        if self.max.when_exceeded == WhenExceeded::Deny && !exceeded.is_empty() {
            let denied = |one: &Exceeded| Denied { option: one.asked.clone(), advice: advice(one) };
            return Err(PolicyError(exceeded.iter().map(denied).collect()));
        }
        Ok(exceeded
            .iter()
            .map(|one| format!("{} is lowered: {}", one.asked, advice(one)))
            .collect())
    }
}

/// Lowers the options of a workflow; returns those that were too high.
fn asked(policy: &Policy, options: &mut CreateOptions) -> Vec<Exceeded> {
    let max = &policy.max;
    let mut exceeded = Vec::new();
    let resources = &mut options.resources;
    if let Some((asked, (most, table))) = above(resources.memory_bytes, max.memory_bytes()) {
        exceeded.push(memory(format!("--memory {}", Size(asked)), most, table));
        resources.memory_bytes = Some(most);
    }
    if let Some(size) = max.memory {
        let most = size.0.saturating_mul(2);
        let is_more = |swap: &Swap| match swap {
            Swap::Unlimited => true,
            Swap::Bytes(bytes) => *bytes > most,
        };
        // Without it there is as much swap as memory.
        resources.memory_swap = resources.memory_swap.filter(|swap| !is_more(swap));
    }
    if let (Some(least), Some(limit)) =
        (&mut resources.memory_reservation_bytes, resources.memory_bytes)
    {
        *least = (*least).min(limit);
    }
    let quota = resources.cpu_quota.and_then(|quota| u64::try_from(quota).ok());
    let period = resources.cpu_period.unwrap_or(PERIOD);
    let by_quota = quota.map(|quota| quota.saturating_mul(1_000_000_000) / period);
    if let Some((asked, (most, table))) = above(resources.nano_cpus.or(by_quota), max.nano_cpus()) {
        exceeded.push(cpus(format!("--cpus {}", count(asked)), most, table));
        (resources.nano_cpus, resources.cpu_quota, resources.cpu_period) = (Some(most), None, None);
    }
    let pids = resources.pids.map(|pids| if pids == 0 { u64::MAX } else { pids });
    if let Some((asked, (most, table))) = above(pids, max.pids()) {
        let asked = if asked == u64::MAX { "-1".to_owned() } else { asked.to_string() };
        let (asked, entry) = (format!("--pids-limit {asked}"), format!("pids = {most}"));
        exceeded.push(Exceeded { asked, entry, table });
        resources.pids = Some(most);
    }
    let shm_size = max.shm_size.map(|size| (size.0, Table::Container));
    if let Some((asked, (most, table))) = above(options.shm_size_bytes, shm_size) {
        let entry = format!("shm-size = \"{}\"", Size(most));
        exceeded.push(Exceeded { asked: format!("--shm-size {}", Size(asked)), entry, table });
        options.shm_size_bytes = Some(most);
    }
    for ulimit in &mut options.ulimits {
        let most = max.ulimits.iter().find(|(name, _)| name.as_str() == ulimit.name);
        if let Some((_, most)) = most.filter(|(_, most)| ulimit.hard > **most) {
            let asked =
                if ulimit.hard == u64::MAX { "-1".to_owned() } else { ulimit.hard.to_string() };
            exceeded.push(Exceeded {
                asked: format!("--ulimit {}={asked}", ulimit.name),
                entry: format!("ulimits = {{ {} = {most} }}", ulimit.name),
                table: Table::Container,
            });
            (ulimit.soft, ulimit.hard) = (ulimit.soft.min(*most), *most);
        }
    }
    exceeded
}

/// Returns what is asked for and the most, if that is less.
pub fn above(asked: Option<u64>, most: Option<(u64, Table)>) -> Option<(u64, (u64, Table))> {
    asked.zip(most).filter(|(asked, (most, _))| asked > most)
}

pub(in crate::container_hook) fn memory(asked: String, most: u64, table: Table) -> Exceeded {
    Exceeded { asked, entry: format!("memory = \"{}\"", Size(most)), table }
}

pub(in crate::container_hook) fn cpus(asked: String, most: u64, table: Table) -> Exceeded {
    Exceeded { asked, entry: format!("cpus = {}", count(most)), table }
}

/// Returns a number of CPUs, as it is written.
fn count(nanos: u64) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let rest = format!("{rest:09}");
    let rest = rest.trim_end_matches('0');
    if rest.is_empty() { whole.to_string() } else { format!("{whole}.{rest}") }
}

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
pub enum Table {
    Container,
    Job,
}

impl Table {
    /// Returns its name.
    pub fn name(self) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(max: &str) -> Policy {
        toml::from_str(&format!("[max]\n{max}")).unwrap()
    }

    fn lowered(max: &str, text: &str) -> (CreateOptions, Vec<String>) {
        let mut options = CreateOptions::parse(text).unwrap();
        let exceeded = asked(&policy(max), &mut options);
        (options, exceeded.into_iter().map(|one| format!("{} {}", one.asked, one.entry)).collect())
    }

    #[test]
    fn what_is_asked_for_is_lowered_and_said() {
        let max = "memory = \"1GiB\"\ncpus = 1.5\npids = 100\nshm-size = \"1MiB\"\n\
                   ulimits = { nofile = 1000 }\n[max.job]\nmemory = \"2GiB\"\npids = 50";
        let (options, said) = lowered(
            max,
            "--memory 64g --memory-swap -1 --memory-reservation 32g --cpus 8 --pids-limit -1 \
             --shm-size 2g --ulimit nofile=500:-1 --ulimit core=-1",
        );
        assert_eq!(
            said,
            [
                "--memory 64GiB memory = \"1GiB\"",
                "--cpus 8 cpus = 1.5",
                "--pids-limit -1 pids = 50",
                "--shm-size 2GiB shm-size = \"1MiB\"",
                "--ulimit nofile=-1 ulimits = { nofile = 1000 }",
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
    fn a_quota_is_a_number_of_cpus() {
        let (options, said) = lowered("cpus = 2", "--cpu-quota 300000");
        assert_eq!(said, ["--cpus 3 cpus = 2"]);
        assert_eq!(
            (options.resources.cpu_quota, options.resources.nano_cpus),
            (None, Some(2_000_000_000))
        );
        assert!(lowered("cpus = 2", "--cpu-quota 300000 --cpu-period 200000").1.is_empty());
    }

    #[test]
    fn what_is_below_stays_as_it_is() {
        let all = "--memory 64m --memory-swap 100m --cpus 0.5 --pids-limit 10 --shm-size 4k";
        let max = "memory = \"64MiB\"\ncpus = 1\npids = 10\nshm-size = \"64MiB\"";
        let (options, said) = lowered(max, all);
        assert_eq!((options, said), (CreateOptions::parse(all).unwrap(), Vec::new()));
        assert!(lowered("", "--memory 64g --cpus 100 --pids-limit 0").1.is_empty());
    }
}
