//! What the program does for pods of a cluster.

use oci_hooks::container_hook::kubernetes::Filling;
use oci_hooks::program::exit::Exit;

use crate::error::Error;

/// Brings what a pod needs.
pub(crate) fn fill(filling: &crate::fill::FillArgs) -> Result<Exit, Error> {
    let pairs = |paths: &[std::path::PathBuf]| {
        paths.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    };
    let filling = Filling {
        agent: filling.agent.clone(),
        copies: pairs(&filling.copies),
        directories: filling.directories.clone(),
        links: pairs(&filling.links),
    };
    filling.fill()?;
    Ok(Exit::Done)
}
