//! `step-runner schema`.

use std::io::{self, Write as _};

use clap::Args;
use step_runner::document;

use crate::RunnerExit;
use crate::error::StepRunnerError;

/// Print the JSON Schema of step files, for editors
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  step-runner schema > step.schema.json

First line of a step file:
  # yaml-language-server: $schema=step.schema.json")]
pub struct SchemaArgs {}

pub fn run(_: &SchemaArgs) -> Result<RunnerExit, StepRunnerError> {
    io::stdout().write_all(document::schema().as_bytes()).map_err(StepRunnerError::Print)?;
    Ok(RunnerExit::Done)
}
