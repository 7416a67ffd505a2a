//! `step-runner schema`.

use clap::Args;
use oci_hooks_cli::exit::CliExit;
use step_runner::document;

use crate::error::StepRunnerError;
use crate::report;

/// Print the JSON Schema of step files, for editors
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  step-runner schema > step.schema.json

First line of a step file:
  # yaml-language-server: $schema=step.schema.json")]
pub struct SchemaArgs {}

pub fn run(_: &SchemaArgs) -> Result<CliExit, StepRunnerError> {
    report::print(document::schema())
}
