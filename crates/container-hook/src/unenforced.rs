//! Limits that are not enforced on this host, and options without effect: reported once per job, or an error.

use std::fmt;

use container_hook_job::HookError;
use container_hook_job::HookLog;
use container_hook_job::options::IneffectiveOption;
use container_hook_job::plan::ContainerPlan;
use oci_hooks_host::cgroup::AvailableCgroups;

use super::backend::EngineBackend;
use super::maximums;
use super::plan::LaunchPlan;

/// Requested limits that are not enforced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct UnenforcedLimits {
    /// Titles of containers, or of all containers together, and the names of their limits.
    limits: Vec<(String, Vec<&'static str>)>,
    /// Controllers of the delegated cgroup; none without a delegated cgroup.
    controllers: Option<Vec<String>>,
}

impl fmt::Display for UnenforcedLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("limits not enforced: ")?;
        for (at, (title, names)) in self.limits.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{title}: {}", names.join(", "))?;
        }
        match &self.controllers {
            None => f.write_str(
                ". No cgroup of version 2 is delegated to the runner: `container-hook doctor` prints what to do",
            ),
            Some(some) if some.is_empty() => f.write_str(
                ". The cgroup that is delegated to the runner has no controllers: `container-hook doctor` \
                 prints what to do",
            ),
            Some(some) => write!(
                f,
                ". The cgroup that is delegated to the runner has no other controllers than {}: \
                 `container-hook doctor` prints what to do",
                some.join(", ")
            ),
        }
    }
}

/// Warns of requested limits that are not enforced.
///
/// # Errors
///
/// See [`check`].
pub fn report(backend: &EngineBackend<'_>, plans: &[LaunchPlan<'_>]) -> Result<(), HookError> {
    check(backend, plans)?;
    if let Some(unenforced) = find(backend, plans) {
        backend.context.log.warning(&unenforced.to_string());
    }
    Ok(())
}

/// Fails if a limit is not enforced and the settings require it.
pub fn check(backend: &EngineBackend<'_>, plans: &[LaunchPlan<'_>]) -> Result<(), HookError> {
    match find(backend, plans).filter(|_| backend.settings.limits.enforce) {
        Some(unenforced) => Err(unenforced.into()),
        None => Ok(()),
    }
}

fn find(backend: &EngineBackend<'_>, plans: &[LaunchPlan<'_>]) -> Option<UnenforcedLimits> {
    let cgroups = backend.engine.cgroups();
    let of_plan = |plan: &LaunchPlan<'_>| {
        let names = plan.requested_limits(backend).take_unenforced(&cgroups);
        (plan.container.title.clone(), names)
    };
    let mut limits: Vec<_> = plans.iter().map(of_plan).collect();
    // Without containers, the limits of the job do not matter.
    if !plans.is_empty() {
        let together = maximums::job_limits(backend).take_unenforced(&cgroups);
        limits.push(("all containers together".to_owned(), together));
    }
    limits.retain(|(_, names)| !names.is_empty());
    let controllers = match cgroups {
        AvailableCgroups::Delegated(controllers) => Some(controllers),
        AvailableCgroups::Host | AvailableCgroups::None => None,
    };
    (!limits.is_empty()).then_some(UnenforcedLimits { limits, controllers })
}

/// Logs each option without effect, with the titles of its containers.
pub fn log_ineffective_options<'a>(
    log: &dyn HookLog,
    containers: impl Iterator<Item = &'a ContainerPlan<'a>>,
) {
    let mut notes: Vec<(IneffectiveOption, Vec<&str>)> = Vec::new();
    for container in containers {
        for note in &container.options.without_effect {
            match notes.iter_mut().find(|(known, _)| known == note) {
                Some((_, titles)) => titles.push(&container.title),
                None => notes.push((*note, vec![&container.title])),
            }
        }
    }
    for (IneffectiveOption { option, reason }, titles) in notes {
        log.line(&format!("{}: --{option} has no effect: {reason}", titles.join(", ")));
    }
}

#[test]
fn unenforced_limits_are_named_by_container_with_a_hint() {
    let limits = vec![
        ("job container".to_owned(), vec!["memory", "cpus"]),
        ("service redis".to_owned(), vec!["memory"]),
    ];
    let mut unenforced = UnenforcedLimits { limits, controllers: None };
    let text = unenforced.to_string();
    assert!(
        text.starts_with(
            "limits not enforced: job container: memory, cpus; service redis: memory. No cgroup of \
             version 2"
        ),
        "{text}"
    );
    unenforced.controllers = Some(vec!["cpu".to_owned(), "pids".to_owned()]);
    assert!(unenforced.to_string().contains("no other controllers than cpu, pids: "));
}
