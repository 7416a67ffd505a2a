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
    #[serde(rename = "hint")]
    hint: Option<String>,
    /// What comes of a failure, if that is not what comes of all others.
    #[serde(skip)]
    consequence: Option<&'static str>,
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Check::new(name, Status::Ok, found.into(), None)
    }

    pub fn warn(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Check::new(name, Status::Warn, found.into(), Some(hint.into()))
    }

    pub fn fail(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        Check::new(name, Status::Fail, found.into(), Some(hint.into()))
    }

    /// Returns a failure that has a consequence of its own.
    pub fn fail_with(
        consequence: &'static str,
        name: &'static str,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Check { consequence: Some(consequence), ..Check::fail(name, found, hint) }
    }

    /// Returns what was found, in a sentence.
    pub fn found(&self) -> &str {
        &self.found
    }

    /// Returns what to do, on a line or several; nothing if all is well.
    pub fn hint(&self) -> &str {
        self.hint.as_deref().unwrap_or_default()
    }

    pub fn is_failure(&self) -> bool {
        self.status == Status::Fail
    }

    pub fn is_warning(&self) -> bool {
        self.status == Status::Warn
    }

    fn new(name: &'static str, status: Status, found: String, hint: Option<String>) -> Self {
        Check { name, status, found, hint, consequence: None }
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
        let indent = "warn".len() + 2 + width + 2;
        context.hanging(format!("{status}  {:width$}  {}", check.name, check.found), indent)?;
        for line in check.hint.iter().flat_map(|hint| hint.lines()) {
            let line = context.paint.paint(style::HINT, line);
            context.hanging(format!("{:indent$}{line}", ""), indent)?;
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let failed = checks.iter().filter(|check| check.status == Status::Fail);
    let bad = consequences(failed.map(|check| check.consequence), outcome);
    let summary = summary(count(Status::Fail), count(Status::Warn), outcome.good, &bad);
    context.hanging(context.paint.paint(style::FAINT, summary), 0)
}

/// Returns what comes of failures: the worst, or each of those that are not so bad.
fn consequences(
    failed: impl Iterator<Item = Option<&'static str>>,
    Outcome { good, bad }: Outcome,
) -> String {
    let mut own: Vec<&str> = Vec::new();
    for consequence in failed {
        match consequence {
            None => return bad.to_owned(),
            Some(one) if !own.contains(&one) => own.push(one),
            Some(_) => {}
        }
    }
    format!("{good}, but {}", own.join(", and "))
}

fn summary(errors: usize, warnings: usize, good: &str, bad: &str) -> String {
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
    let summary = |errors, warnings| summary(errors, warnings, CONTAINERS.good, CONTAINERS.bad);
    assert_eq!(summary(0, 0), "no problems found: containers will run");
    assert_eq!(summary(0, 1), "1 warning: containers will run");
    assert_eq!(summary(1, 2), "1 error, 2 warnings: containers will not run");
    assert_eq!(summary(2, 0), "2 errors: containers will not run");
}

#[test]
fn the_worst_consequence_is_told() {
    let consequences = |all: &[Option<&'static str>]| consequences(all.iter().copied(), CONTAINERS);
    assert_eq!(consequences(&[Some("a"), None]), "containers will not run");
    let own = [Some("a"), Some("b"), Some("a")];
    assert_eq!(consequences(&own), "containers will run, but a, and b");
}
