//! Maximums for containers of this host, `[policy.max]`: limits of the workflow and the template are lowered to the
//! maximum, which is also the default.

use container_hook_job::HookError;
use container_hook_job::options::{CreateOptions, Ulimit};
use container_hook_job::policy::{ExceededMaximum, Policy, exceeded_maximum};
use oci_hooks_engine::bundle::{self, HighestLimit, ProcessRlimit};
use oci_hooks_files::quantity::Cpus;
use oci_hooks_host::cgroup::{ContainerGroup, GroupLimits};

use super::backend::EngineBackend;

/// Returns the cgroup of all containers of a job, or of a step without a job, if they have a common maximum.
pub fn group(backend: &EngineBackend<'_>, network: &str) -> Option<ContainerGroup> {
    let max = &backend.context.settings.policy.max.job;
    (!max.is_empty())
        .then(|| ContainerGroup { id: network.to_owned(), limits: job_limits(backend) })
}

/// Returns the maximums for all containers of a job together.
pub fn job_limits(backend: &EngineBackend<'_>) -> GroupLimits {
    let max = &backend.context.settings.policy.max.job;
    GroupLimits {
        memory_bytes: max.memory.map(|size| size.0),
        nano_cpus: max.cpus.map(Cpus::nanos),
        pids: max.pids,
    }
}

/// Lowers the options of a workflow to the maximums.
pub fn lower_workflow_limits(
    backend: &EngineBackend<'_>,
    title: &str,
    options: &mut CreateOptions,
) -> Result<(), HookError> {
    log_lowered(backend, title, backend.context.settings.policy.lower_options(options)?);
    log_lowered(backend, title, lower_ulimits(backend, &mut options.ulimits));
    Ok(())
}

/// Lowers `--ulimit` to what the settings and this process allow; returns a line for each that was too high.
fn lower_ulimits(backend: &EngineBackend<'_>, ulimits: &mut [Ulimit]) -> Vec<String> {
    let open_files = backend.settings.limits.open_files;
    let mut lines = Vec::new();
    for ulimit in ulimits {
        let setting = open_files.filter(|_| ulimit.name == "nofile");
        let setting = setting.map(|most| (most, "`open-files` under [limits]".to_owned()));
        let own = ProcessRlimit::highest(ulimit.name, backend.engine.privilege);
        let own = own.map(|(most, limit)| match limit {
            HighestLimit::Kernel => (most, "`fs.nr_open` of this machine".to_owned()),
            HighestLimit::Process => {
                (most, format!("`Limit{}=` of the runner's unit", ulimit.name.to_uppercase()))
            }
        });
        let lowest = setting.into_iter().chain(own).min_by_key(|(most, _)| *most);
        let Some((most, reason)) = lowest.filter(|(most, _)| ulimit.hard > *most) else { continue };
        lines.push(format!("--ulimit {ulimit} is lowered: the maximum is {most} ({reason})"));
        (ulimit.soft, ulimit.hard) = (ulimit.soft.min(most), most);
    }
    lines
}

/// Lowers the template's limits of a container to the maximums, and sets unset limits to them.
pub fn lower_template_limits(
    backend: &EngineBackend<'_>,
    title: &str,
    options: &mut bundle::BundleOptions,
) -> Result<(), HookError> {
    let policy = &backend.context.settings.policy;
    log_lowered(backend, title, policy.report_exceeded(lower_limits_in_template(policy, options))?);
    fill_in(policy, options);
    Ok(())
}

fn log_lowered(backend: &EngineBackend<'_>, title: &str, lines: Vec<String>) {
    for line in lines {
        backend.context.log.line(&format!("{title}: {line}"));
    }
}

/// Lowers limits set by the template; the workflow's limits are already lowered.
fn lower_limits_in_template(
    policy: &Policy,
    options: &mut bundle::BundleOptions,
) -> Vec<ExceededMaximum> {
    let (max, resources) = (&policy.max, &mut options.resources);
    let mut exceeded = Vec::new();
    // Without the amount, which users who can read the log may not be allowed to know.
    if let Some((_, (most, table))) = exceeded_maximum(resources.memory_bytes, max.memory_bytes()) {
        exceeded.push(ExceededMaximum::memory(
            "the pod template's limit of memory".to_owned(),
            most,
            table,
        ));
        resources.memory_bytes = Some(most);
        let reserved = &mut resources.memory_reservation_bytes;
        *reserved = reserved.map(|bytes| bytes.min(most));
    }
    if let Some((_, (most, table))) = exceeded_maximum(resources.nano_cpus, max.nano_cpus()) {
        exceeded.push(ExceededMaximum::cpus(
            "the pod template's limit of CPUs".to_owned(),
            most,
            table,
        ));
        resources.nano_cpus = Some(most);
    }
    exceeded
}

/// Sets unset limits of a container to `[policy.max]`; the job's cgroup enforces `[policy.max.job]`.
fn fill_in(policy: &Policy, options: &mut bundle::BundleOptions) {
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
    fn containers_without_options_get_the_maximums() {
        let max = "[max]\nmemory = \"1GiB\"\ncpus = 1\nshm-size = \"1MiB\"\n[max.job]\ncpus = 0.5";
        let policy: Policy = toml::from_str(max).unwrap();
        let mut options = bundle::BundleOptions::default();
        options.resources.cpu_quota = Some(-1);
        fill_in(&policy, &mut options);
        let resources = &options.resources;
        assert_eq!(
            (resources.memory_bytes, resources.nano_cpus),
            (Some(1 << 30), Some(1_000_000_000))
        );
        assert_eq!((resources.cpu_quota, options.shm_size_bytes), (None, Some(1 << 20)));
        options.resources.memory_bytes = Some(2 << 30);
        let said = lower_limits_in_template(&policy, &mut options);
        assert_eq!(said[0].asked, "the pod template's limit of memory");
        assert_eq!(said[1].entry, "cpus = 0.5");
        assert_eq!(options.resources.memory_bytes, Some(1 << 30));
    }
}
