//! `container-hook ps` in a cluster.

use container_hook_kubernetes::admin::{self, JobPod};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::table::{self, format_age};
use oci_hooks_cli::terminal::escape_control;

use super::connection::connect;
use crate::error::HookCommandError;
use crate::ps::PsArgs;
use crate::settings::HookFileSettings;

pub fn run(
    args: &PsArgs,
    settings: &HookFileSettings,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    let cluster = connect(settings)?;
    let pods = cluster.run(admin::list(&cluster)).map_err(Box::new)?;
    if context.is_json() {
        context.json(&pods)?;
        return Ok(CliExit::Done);
    }
    if args.quiet {
        for pod in &pods {
            context.line(&pod.name)?;
        }
        return Ok(CliExit::Done);
    }
    let rows: Vec<_> = pods.iter().map(row).collect();
    table::write(["POD", "ROLE", "RUNNER", "JOB", "NODE", "CREATED", "STATUS"], &rows, context)?;
    Ok(CliExit::Done)
}

fn row(pod: &JobPod) -> [String; 7] {
    // Names of workflows and branches come from users: they may contain control characters.
    let said = |key: &str| pod.job.get(key).map(|value| escape_control(value.as_bytes()));
    let job: Vec<_> = ["repository", "workflow", "job"].into_iter().filter_map(said).collect();
    [
        pod.name.clone(),
        pod.role.clone(),
        pod.runner.clone(),
        job.join(" "),
        pod.node.clone().unwrap_or_default(),
        pod.created.map(format_age).unwrap_or_default(),
        status(pod),
    ]
}

/// Returns the phase, with the pod's reason and the containers that do not run.
fn status(pod: &JobPod) -> String {
    let others = pod.containers.iter().filter(|container| container.state != "running");
    let others = others.map(|container| format!("{} {}", container.name, container.state));
    let details = pod.reason.clone().into_iter().chain(others).collect::<Vec<_>>().join("; ");
    let phase = pod.phase.to_lowercase();
    if details.is_empty() {
        phase
    } else {
        format!("{phase}: {}", escape_control(details.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use container_hook_kubernetes::admin::PodContainer;

    use super::*;

    #[test]
    fn stopped_containers_are_marked_and_control_characters_escaped() {
        let container = |name: &str, state: &str| PodContainer {
            name: name.to_owned(),
            image: "a".to_owned(),
            state: state.to_owned(),
        };
        let pod = JobPod {
            name: "r-workflow".to_owned(),
            runner: "r".to_owned(),
            role: "job".to_owned(),
            phase: "Running".to_owned(),
            reason: None,
            node: Some("n".to_owned()),
            created: None,
            containers: vec![container("job", "running"), container("redis", "ended with code 1")],
            job: BTreeMap::from([
                ("repository".to_owned(), "octo/repo".to_owned()),
                ("workflow".to_owned(), "a\x1b[2J".to_owned()),
            ]),
        };
        let expected = [
            "r-workflow",
            "job",
            "r",
            "octo/repo a\\u{1b}[2J",
            "n",
            "",
            "running: redis ended with code 1",
        ];
        assert_eq!(row(&pod), expected);
    }
}
