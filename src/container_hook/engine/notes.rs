//! What people should know of what they wrote, each once.

use crate::container_hook::log::Log;
use crate::container_hook::options::WithoutEffect;
use crate::container_hook::plan::ContainerPlan;

/// Reports the options that have no effect, each with all containers that have it.
pub(super) fn without_effect<'a>(
    log: &dyn Log,
    containers: impl Iterator<Item = &'a ContainerPlan<'a>>,
) {
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
