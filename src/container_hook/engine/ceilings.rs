//! What no container exceeds, `[policy.max]`, of one host: what the template says is lowered too, and who asks
//! for nothing has it.

use super::backend::EngineBackend;
use crate::bundle;
use crate::container_hook::error::HookError;
use crate::container_hook::options::CreateOptions;
use crate::container_hook::policy::{Exceeded, Policy, above, cpus, memory};
use crate::sys::cgroup::{Group, GroupLimits};
use crate::sys::quantity::Cpus;

/// Returns the cgroup of all containers of a job, or of a step without one, if they have a ceiling together.
pub fn group(backend: &EngineBackend<'_>, network: &str) -> Option<Group> {
    let max = &backend.context.settings.policy.max.job;
    (!max.is_empty()).then(|| Group { id: network.to_owned(), limits: of_job(backend) })
}

/// Returns the ceiling of all containers of a job together.
pub fn of_job(backend: &EngineBackend<'_>) -> GroupLimits {
    let max = &backend.context.settings.policy.max.job;
    GroupLimits {
        memory_bytes: max.memory.map(|size| size.0),
        nano_cpus: max.cpus.map(Cpus::nanos),
        pids: max.pids,
    }
}

/// Lowers what a workflow asks for to what a container may have.
pub fn lower_asked(
    backend: &EngineBackend<'_>,
    title: &str,
    options: &mut CreateOptions,
) -> Result<(), HookError> {
    tell(backend, title, backend.context.settings.policy.lower(options)?);
    Ok(())
}

/// Lowers what the template says of a container in the same way, and gives it the ceilings where nothing
/// is said.
pub fn lower_template(
    backend: &EngineBackend<'_>,
    title: &str,
    options: &mut bundle::Options,
) -> Result<(), HookError> {
    let policy = &backend.context.settings.policy;
    tell(backend, title, policy.exceeded(said_by_template(policy, options))?);
    fill_in(policy, options);
    Ok(())
}

fn tell(backend: &EngineBackend<'_>, title: &str, lines: Vec<String>) {
    for line in lines {
        backend.context.log.line(&format!("{title}: {line}"));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_nothing_has_the_ceilings_of_containers() {
        let max = "[max]\nmemory = \"1GiB\"\ncpus = 1\nshm-size = \"1MiB\"\n[max.job]\ncpus = 0.5";
        let policy: Policy = toml::from_str(max).unwrap();
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
