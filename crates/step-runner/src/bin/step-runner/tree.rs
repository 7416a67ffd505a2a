//! Human-readable results of steps.

use std::fmt;

use anstyle::{AnsiColor, Style};
use step_runner::ExprValue;
use step_runner::wire::proto::StepResult;
use step_runner::wire::proto::step_result::Status;

/// Maximum number of characters of a displayed value; the results as JSON contain values in full.
const MAX_VALUE_CHARS: usize = 200;

/// The steps of a job, displayed as a tree.
pub struct StepTree<'a>(pub &'a StepResult);

/// The outputs of a job, displayed one per line.
pub struct OutputList<'a>(pub &'a StepResult);

impl fmt::Display for StepTree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The wrapper step created by `run` has no name.
        let Some(only) = only_step(self.0) else {
            return self.0.sub_step_results.iter().try_for_each(|step| show(step, 0, f));
        };
        only.sub_step_results.iter().try_for_each(|step| show(step, 0, f))?;
        OutputList(self.0).fmt(f)
    }
}

impl fmt::Display for OutputList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outputs = only_step(self.0).map_or(&self.0.outputs, |step| &step.outputs);
        if !outputs.is_empty() {
            writeln!(f, "Outputs:")?;
        }
        outputs.iter().try_for_each(|(name, output)| writeln!(f, "  {name} = {}", value(output)))
    }
}

/// Returns the only step of a job if it has no name, as the step given to `run` has none.
fn only_step(result: &StepResult) -> Option<&StepResult> {
    match result.sub_step_results.as_slice() {
        [only] if name(only).is_empty() => Some(only),
        _ => None,
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
    result.outputs.iter().try_for_each(|(name, output)| write!(f, "  {name}={}", value(output)))?;
    writeln!(f)?;
    result.sub_step_results.iter().try_for_each(|step| show(step, depth + 1, f))
}

/// Returns a value as JSON, which contains no control characters.
fn value(value: &prost_types::Value) -> String {
    let json = ExprValue::from(value.clone()).to_json();
    match json.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}…", &json[..end]),
        None => json,
    }
}

fn name(result: &StepResult) -> &str {
    result.step.as_ref().map_or("", |step| &step.name)
}
