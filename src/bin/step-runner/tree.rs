//! Human-readable tree of step results.

use std::fmt;

use anstyle::{AnsiColor, Style};
use oci_hooks::step_runner::wire::proto::StepResult;
use oci_hooks::step_runner::wire::proto::step_result::Status;

/// Displays the steps of a job, each below its caller.
pub(crate) struct Tree<'a>(pub(crate) &'a StepResult);

impl fmt::Display for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The wrapper that `run` makes has no name.
        let steps = match self.0.sub_step_results.as_slice() {
            [only] if name(only).is_empty() && !only.sub_step_results.is_empty() => {
                &only.sub_step_results
            }
            steps => steps,
        };
        steps.iter().try_for_each(|step| show(step, 0, f))
    }
}

fn show(result: &StepResult, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (mark, color) = match result.status() {
        Status::Success => ("✓", AnsiColor::Green),
        Status::Failure => ("✗", AnsiColor::Red),
        _ => ("-", AnsiColor::Yellow),
    };
    let style = Style::new().fg_color(Some(color.into()));
    write!(f, "{:2$}{style}{mark}{style:#} {}", "", name(result), depth * 2)?;
    if let Some(exec) = &result.exec_result
        && exec.exit_code != 0
    {
        write!(f, "  exit code {}", exec.exit_code)?;
    }
    if !result.outputs.is_empty() {
        let names: Vec<_> = result.outputs.keys().map(String::as_str).collect();
        write!(f, "  outputs: {}", names.join(", "))?;
    }
    writeln!(f)?;
    result.sub_step_results.iter().try_for_each(|step| show(step, depth + 1, f))
}

fn name(result: &StepResult) -> &str {
    result.step.as_ref().map_or("", |step| &step.name)
}
