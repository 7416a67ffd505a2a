//! Limits that do not hold on this host, and options without effect: said once for a job, or an error.

use std::fmt;

use super::backend::EngineBackend;
use super::ceilings;
use super::plan::Plan;
use crate::container_hook::context::Log;
use crate::container_hook::error::HookError;
use crate::container_hook::options::WithoutEffect;
use crate::container_hook::plan::ContainerPlan;
use crate::sys::cgroup::Cgroups;

/// Limits that were asked for and do not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct UnkeptLimits {
    /// For each container, and for all together, by their titles: the names of the limits.
    limits: Vec<(String, Vec<&'static str>)>,
    /// The controllers that were delegated; none if no cgroup was.
    controllers: Option<Vec<String>>,
}

impl fmt::Display for UnkeptLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("limits that do not hold: ")?;
        for (at, (title, names)) in self.limits.iter().enumerate() {
            let separator = if at == 0 { "" } else { "; " };
            write!(f, "{separator}{title}: {}", names.join(", "))?;
        }
        match &self.controllers {
            None => f.write_str(
                ". No cgroup is delegated to the runner: add `Delegate=yes` to its service, see \
                 container-hook doctor",
            ),
            Some(some) if some.is_empty() => f.write_str(
                ". The cgroup that is delegated to the runner has no controllers: see container-hook \
                 doctor",
            ),
            Some(some) => write!(
                f,
                ". The cgroup that is delegated to the runner has no other controllers than {}: see \
                 container-hook doctor",
                some.join(", ")
            ),
        }
    }
}

/// Warns of the limits that do not hold, of all containers at once.
///
/// # Errors
///
/// See [`check`].
pub fn report(backend: &EngineBackend<'_>, plans: &[Plan<'_>]) -> Result<(), HookError> {
    check(backend, plans)?;
    if let Some(unkept) = find(backend, plans) {
        backend.context.log.warning(&unkept.to_string());
    }
    Ok(())
}

/// Fails if a limit does not hold and the settings say that it has to.
pub fn check(backend: &EngineBackend<'_>, plans: &[Plan<'_>]) -> Result<(), HookError> {
    match find(backend, plans).filter(|_| backend.settings.enforce_limits) {
        Some(unkept) => Err(unkept.into()),
        None => Ok(()),
    }
}

fn find(backend: &EngineBackend<'_>, plans: &[Plan<'_>]) -> Option<UnkeptLimits> {
    let cgroups = backend.engine.cgroups();
    let of_plan = |plan: &Plan<'_>| {
        let names = plan.asked_limits(backend).take_unkept(&cgroups);
        (plan.container.title.clone(), names)
    };
    let mut limits: Vec<_> = plans.iter().map(of_plan).collect();
    // Where nothing is started, nothing is limited.
    if !plans.is_empty() {
        let together = ceilings::of_job(backend).take_unkept(&cgroups);
        limits.push(("all containers together".to_owned(), together));
    }
    limits.retain(|(_, names)| !names.is_empty());
    let controllers = match cgroups {
        Cgroups::Delegated(controllers) => Some(controllers),
        Cgroups::Host | Cgroups::None => None,
    };
    (!limits.is_empty()).then_some(UnkeptLimits { limits, controllers })
}

/// Reports the options that have no effect, each with all containers that have it.
pub fn without_effect<'a>(log: &dyn Log, containers: impl Iterator<Item = &'a ContainerPlan<'a>>) {
    let mut notes: Vec<(WithoutEffect, Vec<&str>)> = Vec::new();
    for container in containers {
        for note in &container.options.without_effect {
            match notes.iter_mut().find(|(known, _)| known == note) {
                Some((_, titles)) => titles.push(&container.title),
                None => notes.push((*note, vec![&container.title])),
            }
        }
    }
    for (WithoutEffect { option, reason }, titles) in notes {
        log.line(&format!("{}: --{option} has no effect: {reason}", titles.join(", ")));
    }
}

#[test]
fn the_limits_of_each_container_are_named_with_what_to_do() {
    let limits = vec![
        ("job container".to_owned(), vec!["memory", "cpus"]),
        ("service redis".to_owned(), vec!["memory"]),
    ];
    let mut unkept = UnkeptLimits { limits, controllers: None };
    let text = unkept.to_string();
    assert!(
        text.starts_with(
            "limits that do not hold: job container: memory, cpus; service redis: memory. No cgroup"
        ),
        "{text}"
    );
    unkept.controllers = Some(vec!["cpu".to_owned(), "pids".to_owned()]);
    assert!(unkept.to_string().contains("no other controllers than cpu, pids: "));
}
