//! `container-hook logs` in a cluster.

use std::io::IsTerminal as _;

use container_hook_kubernetes::admin;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::terminal::escape_control;

use super::connection::connect;
use crate::error::HookCommandError;
use crate::logs::LogsArgs;
use crate::settings::HookFileSettings;

pub fn run(
    args: &LogsArgs,
    settings: &HookFileSettings,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    if args.follow {
        return Err(HookCommandError::FollowedPod);
    }
    let cluster = connect(settings)?;
    let pod = &args.id;
    let found = cluster.run(admin::containers(&cluster, pod)).map_err(Box::new)?;
    let containers = found.ok_or_else(|| {
        let namespace = cluster.namespace().to_owned();
        HookCommandError::NoSuchPod { pod: pod.clone(), namespace }
    })?;
    let container = choose(pod, &containers, args.container.as_deref())?;
    let tail = args.tail.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let lines = cluster.run(admin::log(&cluster, pod, container, tail)).map_err(Box::new)?;
    if context.is_json() {
        context.json(&lines)?;
        return Ok(CliExit::Done);
    }
    let is_terminal = std::io::stdout().is_terminal();
    for line in &lines {
        if let (true, Some(time)) = (args.timestamps, line.time) {
            context.write(format!("{time:.3} "))?;
        }
        // Escape sequences of containers must not reach the terminal.
        match is_terminal {
            true => context.line(escape_control(line.text.as_bytes()))?,
            false => context.line(&line.text)?,
        }
    }
    Ok(CliExit::Done)
}

/// Returns the named container, or the only one.
fn choose<'a>(
    pod: &str,
    containers: &'a [String],
    named: Option<&str>,
) -> Result<&'a str, HookCommandError> {
    let named_one = |name: &str| containers.iter().find(|one| *one == name);
    let found = match (named, containers) {
        (Some(name), _) => named_one(name),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    found.map(String::as_str).ok_or_else(|| HookCommandError::WhichContainer {
        pod: pod.to_owned(),
        containers: containers.to_vec(),
    })
}

#[test]
fn log_lines_name_the_container_if_a_pod_has_several() {
    let names = ["job", "redis"].map(str::to_owned);
    assert_eq!(choose("p", &names, Some("redis")).unwrap(), "redis");
    assert_eq!(choose("p", &names[..1], None).unwrap(), "job");
    for named in [None, Some("other")] {
        let error = choose("p", &names, named).unwrap_err().to_string();
        assert_eq!(error, "pod p has containers job, redis: name one of them");
    }
}
