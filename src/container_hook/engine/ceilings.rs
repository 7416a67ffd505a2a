//! What no container exceeds, `[policy.max]`: lowered and told, or refused.

use super::backend::EngineBackend;
use crate::bundle;
use crate::container_hook::error::HookError;
use crate::container_hook::options::{CreateOptions, Swap};
use crate::container_hook::policy::{Policy, PolicyError, Refused, Table, WhenExceeded};
use crate::sys::cgroup::{Group, GroupLimits};
use crate::sys::cpus::Cpus;
use crate::sys::quantity::Size;

/// The usual period of a CPU quota, in microseconds.
const PERIOD: u64 = 100_000;

/// Something that a container asks more of than it may have.
struct Exceeded {
    asked: String,
    /// The setting, as it is written.
    entry: String,
    table: Table,
}

/// Returns the cgroup of all containers of a job, or of a step without one, if they have a ceiling together.
pub(super) fn group(backend: &EngineBackend<'_>, network: &str) -> Option<Group> {
    let max = &backend.context.settings.policy.max.job;
    let limits = GroupLimits {
        memory_bytes: max.memory.map(|size| size.0),
        nano_cpus: max.cpus.map(Cpus::nanos),
        pids: max.pids,
    };
    (!max.is_empty()).then(|| Group { id: network.to_owned(), limits })
}

/// Lowers what a workflow asks for to what a container may have.
pub(super) fn lower_asked(
    backend: &EngineBackend<'_>,
    title: &str,
    options: &mut CreateOptions,
) -> Result<(), HookError> {
    let policy = &backend.context.settings.policy;
    tell(backend, title, asked(policy, options))
}

/// Lowers what the template says of a container in the same way, and gives it the ceilings where nothing
/// is said.
pub(super) fn lower_template(
    backend: &EngineBackend<'_>,
    title: &str,
    options: &mut bundle::Options,
) -> Result<(), HookError> {
    let policy = &backend.context.settings.policy;
    tell(backend, title, said_by_template(policy, options))?;
    fill_in(policy, options);
    Ok(())
}

fn tell(
    backend: &EngineBackend<'_>,
    title: &str,
    exceeded: Vec<Exceeded>,
) -> Result<(), HookError> {
    let policy = &backend.context.settings.policy;
    let advice = |one: &Exceeded| {
        let Exceeded { entry, table, .. } = one;
        let section = policy.section(table.name());
        format!("the most is `{entry}` under {section}")
    };
    if policy.max.when_exceeded == WhenExceeded::Refuse && !exceeded.is_empty() {
        let refused = |one: &Exceeded| Refused { option: one.asked.clone(), advice: advice(one) };
        return Err(PolicyError(exceeded.iter().map(refused).collect()).into());
    }
    for one in &exceeded {
        backend.context.log.line(&format!("{title}: {} is lowered: {}", one.asked, advice(one)));
    }
    Ok(())
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

/// Lowers what only the template can have said: the rest is lowered by now.
fn said_by_template(policy: &Policy, options: &mut bundle::Options) -> Vec<Exceeded> {
    let (max, resources) = (&policy.max, &mut options.resources);
    let mut exceeded = Vec::new();
    // Not how much: who reads the log may not read the template.
    if let Some((_, (most, table))) = above(resources.memory_bytes, max.memory_bytes()) {
        exceeded.push(memory("the pod template's limit of memory".to_owned(), most, table));
        resources.memory_bytes = Some(most);
        let reserved = &mut resources.memory_reservation_bytes;
        *reserved = reserved.map(|bytes| bytes.min(most));
    }
    if let Some((_, (most, table))) = above(resources.nano_cpus, max.nano_cpus()) {
        exceeded.push(cpus("the pod template's limit of CPUs".to_owned(), most, table));
        resources.nano_cpus = Some(most);
    }
    exceeded
}

/// Gives a container the ceilings of containers where it has no limit. Those of its job hold by the job's
/// cgroup.
fn fill_in(policy: &Policy, options: &mut bundle::Options) {
    let (max, resources) = (&policy.max, &mut options.resources);
    if resources.memory_bytes.is_none()
        && let Some(size) = max.memory
    {
        (resources.memory_bytes, resources.memory_swap_bytes) = (Some(size.0), None);
    }
    let has_quota = resources.cpu_quota.is_some_and(|quota| quota > 0);
    if resources.nano_cpus.is_none()
        && !has_quota
        && let Some(cpus) = max.cpus
    {
        resources.nano_cpus = Some(cpus.nanos());
        (resources.cpu_quota, resources.cpu_period) = (None, None);
    }
    if let Some(size) = max.shm_size {
        let shm_size = options.shm_size_bytes.unwrap_or(bundle::DEFAULT_SHM_BYTES);
        options.shm_size_bytes = Some(shm_size.min(size.0));
    }
}

/// Returns what is asked for and the most, if that is less.
fn above(asked: Option<u64>, most: Option<(u64, Table)>) -> Option<(u64, (u64, Table))> {
    asked.zip(most).filter(|(asked, (most, _))| asked > most)
}

fn memory(asked: String, most: u64, table: Table) -> Exceeded {
    Exceeded { asked, entry: format!("memory = \"{}\"", Size(most)), table }
}

fn cpus(asked: String, most: u64, table: Table) -> Exceeded {
    Exceeded { asked, entry: format!("cpus = {}", count(most)), table }
}

/// Returns a number of CPUs, as it is written.
fn count(nanos: u64) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let rest = format!("{rest:09}");
    let rest = rest.trim_end_matches('0');
    if rest.is_empty() { whole.to_string() } else { format!("{whole}.{rest}") }
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

    #[test]
    fn who_asks_for_nothing_has_the_ceilings_of_containers() {
        let policy =
            policy("memory = \"1GiB\"\ncpus = 1\nshm-size = \"1MiB\"\n[max.job]\ncpus = 0.5");
        let mut options = bundle::Options::default();
        options.resources.cpu_quota = Some(-1);
        fill_in(&policy, &mut options);
        let resources = &options.resources;
        assert_eq!(
            (resources.memory_bytes, resources.nano_cpus),
            (Some(1 << 30), Some(1_000_000_000))
        );
        assert_eq!((resources.cpu_quota, options.shm_size_bytes), (None, Some(1 << 20)));
        options.resources.memory_bytes = Some(2 << 30);
        let said = said_by_template(&policy, &mut options);
        assert_eq!(said[0].asked, "the pod template's limit of memory");
        assert_eq!(said[1].entry, "cpus = 0.5");
        assert_eq!(options.resources.memory_bytes, Some(1 << 30));
    }
}
