//! `oci-hooks explain`.

use clap::Args;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;

/// Tell which hooks apply to a container and why the others do not
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {}

pub(crate) fn run(_: &ExplainArgs, _: &mut Context) -> Result<Exit, Error> {
    Ok(Exit::No)
}
