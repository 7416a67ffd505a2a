//! `container-hook prune` in a cluster.

use oci_hooks::container_hook::kubernetes::admin;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::sys::quantity::counted;

use super::connection::connect;
use crate::error::Error;
use crate::prune::PruneArgs;
use crate::settings::Settings;

pub fn run(args: &PruneArgs, settings: &Settings, context: &mut Context) -> Result<Exit, Error> {
    if let Some(option) = args.of_images() {
        return Err(Error::NoImages { option });
    }
    let cluster = connect(settings)?;
    let pruned = cluster.run(admin::prune(&cluster, args.is_all())).map_err(Box::new)?;
    if context.is_json() {
        context.json(&pruned)?;
        return Ok(Exit::Done);
    }
    if !pruned.kept.is_empty() {
        context.note(&format!(
            "nothing owns {}: the runner may be in another namespace; --all removes them too",
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
        counted(pruned.pods.len(), "pod"),
        counted(pruned.secrets.len(), "secret"),
        cluster.namespace()
    ))?;
    Ok(Exit::Done)
}
