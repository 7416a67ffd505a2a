//! Findings of `doctor`, and how they are reported.

use serde::Serialize;

use super::super::context::{Context, OutputError};
use super::super::exit::Exit;
use super::super::style;
use crate::sys::quantity::counted;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    /// Containers run, but not all of them or not as well as they could.
    Warn,
    Fail,
}

/// A finding about one thing that containers need.
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

/// All findings, as `doctor --format json` prints them.
#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    checks: &'a [Check],
}

/// Prints the findings, and returns whether containers run.
pub fn report(checks: &[Check], context: &mut Context) -> Result<Exit, OutputError> {
    let ok = checks.iter().all(|check| check.status != Status::Fail);
    if context.is_json() {
        context.json(&Report { ok, checks })?;
    } else {
        show(checks, context)?;
    }
    Ok(if ok { Exit::Done } else { Exit::Findings })
}

fn show(checks: &[Check], context: &mut Context) -> Result<(), OutputError> {
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
    let summary = summary(count(Status::Fail), count(Status::Warn));
    context.line(context.paint.paint(style::FAINT, summary))
}

fn summary(errors: usize, warnings: usize) -> String {
    let warned = counted(warnings, "warning");
    match (errors, warnings) {
        (0, 0) => "no problems found: containers will run".to_owned(),
        (0, _) => format!("{warned}: containers will run"),
        (_, 0) => format!("{}: containers will not run", counted(errors, "error")),
        _ => format!("{}, {warned}: containers will not run", counted(errors, "error")),
    }
}

#[test]
fn summaries_count_by_severity() {
    assert_eq!(summary(0, 0), "no problems found: containers will run");
    assert_eq!(summary(0, 1), "1 warning: containers will run");
    assert_eq!(summary(1, 2), "1 error, 2 warnings: containers will not run");
    assert_eq!(summary(2, 0), "2 errors: containers will not run");
}
