//! `step-runner schema`.

use std::io::{self, Write as _};

use clap::Args;
use oci_hooks::step_runner::document;

use crate::Exit;
use crate::error::Error;

/// Print the JSON Schema of step files, for editors
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  step-runner schema > step.schema.json

First line of a step file:
  # yaml-language-server: $schema=step.schema.json")]
pub struct SchemaArgs {}

pub fn run(_: &SchemaArgs) -> Result<Exit, Error> {
    io::stdout().write_all(document::schema().as_bytes()).map_err(Error::Print)?;
    Ok(Exit::Done)
}
