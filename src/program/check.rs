//! Findings of `doctor`, and how they are reported.

use serde::Serialize;

use super::context::{Context, OutputError};
use super::exit::Exit;
use super::style;
use crate::sys::quantity::counted;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Ok,
    /// It works, but not always or not as well as it could.
    Warn,
    Fail,
}

/// A finding about one thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    name: &'static str,
    status: Status,
    found: String,
    #[serde(rename = "mend")]
    hint: Option<String>,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Check { name, status: Status::Ok, found: found.into(), hint: None }
    }

    pub fn warn(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Check { name, status: Status::Warn, found: found.into(), hint: Some(hint.into()) }
    }

    pub fn fail(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Check { name, status: Status::Fail, found: found.into(), hint: Some(hint.into()) }
    }
}

/// What the findings of a `doctor` come to, for its last line.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Follows the number of warnings, if nothing failed.
    pub good: &'static str,
    /// Follows the number of errors.
    pub bad: &'static str,
}

/// Of those who look at what containers need.
pub const CONTAINERS: Outcome =
    Outcome { good: "containers will run", bad: "containers will not run" };

/// All findings, as `doctor --format json` prints them.
#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    checks: &'a [Check],
}

/// Prints the findings, and returns whether nothing failed.
pub fn report(
    checks: &[Check],
    outcome: Outcome,
    context: &mut Context,
) -> Result<Exit, OutputError> {
    let ok = checks.iter().all(|check| check.status != Status::Fail);
    if context.is_json() {
        context.json(&Report { ok, checks })?;
    } else {
        show(checks, outcome, context)?;
    }
    Ok(if ok { Exit::Done } else { Exit::Findings })
}

fn show(checks: &[Check], outcome: Outcome, context: &mut Context) -> Result<(), OutputError> {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    for check in checks {
        let (style, status) = match check.status {
            Status::Ok => (style::GOOD, "ok  "),
            Status::Warn => (style::WARNING, "warn"),
            Status::Fail => (style::BAD, "fail"),
        };
        let status = context.paint.paint(style, status);
        context.line(format!("{status}  {:width$}  {}", check.name, check.found))?;
        for line in check.hint.iter().flat_map(|hint| hint.lines()) {
            let line = context.paint.paint(style::HINT, line);
            context.line(format!("      {:width$}  {line}", ""))?;
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let summary = summary(count(Status::Fail), count(Status::Warn), outcome);
    context.line(context.paint.paint(style::FAINT, summary))
}

fn summary(errors: usize, warnings: usize, Outcome { good, bad }: Outcome) -> String {
    let warned = counted(warnings, "warning");
    match (errors, warnings) {
        (0, 0) => format!("no problems found: {good}"),
        (0, _) => format!("{warned}: {good}"),
        (_, 0) => format!("{}: {bad}", counted(errors, "error")),
        _ => format!("{}, {warned}: {bad}", counted(errors, "error")),
    }
}

#[test]
fn summaries_count_by_severity() {
    let summary = |errors, warnings| summary(errors, warnings, CONTAINERS);
    assert_eq!(summary(0, 0), "no problems found: containers will run");
    assert_eq!(summary(0, 1), "1 warning: containers will run");
    assert_eq!(summary(1, 2), "1 error, 2 warnings: containers will not run");
    assert_eq!(summary(2, 0), "2 errors: containers will not run");
}
