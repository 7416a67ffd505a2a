//! `container-hook prune` in a cluster.

use container_hook_kubernetes::admin;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::quantity::format_count;

use super::connection::connect;
use crate::error::HookCommandError;
use crate::prune::PruneArgs;
use crate::settings::HookFileSettings;

pub fn run(
    args: &PruneArgs,
    settings: &HookFileSettings,
    context: &mut CliContext,
) -> Result<CliExit, HookCommandError> {
    if let Some(option) = args.image_only_option() {
        return Err(HookCommandError::NoImages { option });
    }
    let cluster = connect(settings)?;
    let pruned = cluster.run(admin::prune(&cluster, args.is_all())).map_err(Box::new)?;
    if context.is_json() {
        context.json(&pruned)?;
        return Ok(CliExit::Done);
    }
    if !pruned.kept.is_empty() {
        context.note(&format!(
            "not removed, because no runner's pod owns them: {}; their runners may be in another namespace; --all removes them too",
            pruned.kept.join(", ")
        ));
    }
    for pod in &pruned.pods {
        context.line(format!("removed pod {pod}"))?;
    }
    for secret in &pruned.secrets {
        context.line(format!("removed secret {secret}"))?;
    }
    context.line(format!(
        "removed {} and {} of namespace {}",
        format_count(pruned.pods.len(), "pod"),
        format_count(pruned.secrets.len(), "secret"),
        cluster.namespace()
    ))?;
    Ok(CliExit::Done)
}
