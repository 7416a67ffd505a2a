//! Findings of `doctor`, and their report.

use oci_hooks_files::quantity::format_count;
use serde::Serialize;

use super::context::{CliContext, OutputError};
use super::exit::CliExit;
use super::style;
use super::terminal::escape_control;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    Ok,
    /// The checked part works, but not always or not as well as it could.
    Warn,
    Fail,
}

/// A finding about one part of the machine.
#[derive(Clone, Debug, Serialize)]
pub struct HostCheck {
    name: &'static str,
    status: CheckStatus,
    found: String,
    #[serde(rename = "hint")]
    hint: Option<String>,
    /// Consequence of this failure in the summary, if it differs from [`CheckSummary::bad`].
    #[serde(skip)]
    consequence: Option<&'static str>,
}

impl HostCheck {
    /// Returns a check that passed.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        HostCheck::new(name, CheckStatus::Ok, found.into(), None)
    }

    /// Returns a check that passed with a warning, and a hint.
    pub fn warn(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        HostCheck::new(name, CheckStatus::Warn, found.into(), Some(hint.into()))
    }

    /// Returns a check that failed, and a hint.
    pub fn fail(name: &'static str, found: impl Into<String>, hint: impl Into<String>) -> Self {
        HostCheck::new(name, CheckStatus::Fail, found.into(), Some(hint.into()))
    }

    /// Returns a failed check with its own consequence in the summary.
    pub fn fail_with(
        consequence: &'static str,
        name: &'static str,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        HostCheck { consequence: Some(consequence), ..HostCheck::fail(name, found, hint) }
    }

    /// Returns the finding as a sentence on one line.
    pub fn finding(&self) -> &str {
        &self.found
    }

    /// Returns the hint, of one or more lines; empty if the check passed.
    pub fn hint(&self) -> &str {
        self.hint.as_deref().unwrap_or_default()
    }

    /// Returns whether the check failed.
    pub fn is_failure(&self) -> bool {
        self.status == CheckStatus::Fail
    }

    /// Returns whether the check is a warning.
    pub fn is_warning(&self) -> bool {
        self.status == CheckStatus::Warn
    }

    /// Returns a check whose texts have their control characters escaped: findings quote files and
    /// processes of other users, whose text must neither control the terminal nor look like another
    /// check. Only hints have more than one line.
    fn new(name: &'static str, status: CheckStatus, found: String, hint: Option<String>) -> Self {
        let escape = |line: &str| escape_control(line.as_bytes());
        let found = escape(found.trim_end());
        let hint = hint.map(|hint| hint.lines().map(escape).collect::<Vec<_>>().join("\n"));
        HostCheck { name, status, found, hint, consequence: None }
    }
}

/// Texts of the summary, which is the last line of `doctor`.
#[derive(Clone, Copy, Debug)]
pub struct CheckSummary {
    /// Consequence if no check failed, such as `containers will run`; printed after the number of
    /// warnings.
    pub good: &'static str,
    /// Consequence of a failed check, such as `containers will not run`; printed after the number
    /// of errors.
    pub bad: &'static str,
}

/// Summary of checks that containers depend on.
pub const CONTAINERS: CheckSummary =
    CheckSummary { good: "containers will run", bad: "containers will not run" };

/// All findings, as `doctor --format json` prints them.
#[derive(Serialize)]
struct CheckReport<'a> {
    ok: bool,
    checks: &'a [HostCheck],
}

/// Prints the findings, and returns [`CliExit::Findings`] if a check failed.
pub fn report(
    checks: &[HostCheck],
    outcome: CheckSummary,
    context: &mut CliContext,
) -> Result<CliExit, OutputError> {
    let ok = checks.iter().all(|check| check.status != CheckStatus::Fail);
    if context.is_json() {
        context.json(&CheckReport { ok, checks })?;
    } else {
        show(checks, outcome, context)?;
    }
    Ok(if ok { CliExit::Done } else { CliExit::Findings })
}

fn show(
    checks: &[HostCheck],
    outcome: CheckSummary,
    context: &mut CliContext,
) -> Result<(), OutputError> {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    for check in checks {
        let (style, status) = match check.status {
            CheckStatus::Ok => (style::GOOD, "ok  "),
            CheckStatus::Warn => (style::WARNING, "warn"),
            CheckStatus::Fail => (style::BAD, "fail"),
        };
        let status = context.paint.paint(style, status);
        let indent = "warn".len() + 2 + width + 2;
        context.write_hanging_line(
            format!("{status}  {:width$}  {}", check.name, check.found),
            indent,
        )?;
        for line in check.hint.iter().flat_map(|hint| hint.lines()) {
            let line = context.paint.paint(style::HINT, line);
            context.write_hanging_line(format!("{:indent$}{line}", ""), indent)?;
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let failed = checks.iter().filter(|check| check.status == CheckStatus::Fail);
    let bad = consequences(failed.map(|check| check.consequence), outcome);
    let summary = summary(count(CheckStatus::Fail), count(CheckStatus::Warn), outcome.good, &bad);
    context.write_hanging_line(context.paint.paint(style::FAINT, summary), 0)
}

/// Returns the text of the summary for failed checks: `bad`, or, if each failed check has its own
/// consequence, `good` followed by the consequences.
fn consequences(
    failed: impl Iterator<Item = Option<&'static str>>,
    CheckSummary { good, bad }: CheckSummary,
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
    let warned = format_count(warnings, "warning");
    match (errors, warnings) {
        (0, 0) => format!("no problems found: {good}"),
        (0, _) => format!("{warned}: {good}"),
        (_, 0) => format!("{}: {bad}", format_count(errors, "error")),
        _ => format!("{}, {warned}: {bad}", format_count(errors, "error")),
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
fn texts_of_others_control_no_terminal_and_forge_no_check() {
    let forged = "calls /a\x1b[2K\nok    runner  all is well";
    let check = HostCheck::warn("runner", forged, "first \x1b[2K\r\nsecond\n");
    assert_eq!(check.finding(), "calls /a\\u{1b}[2K\\nok    runner  all is well");
    assert_eq!(check.hint(), "first \\u{1b}[2K\nsecond");
}

#[test]
fn check_status_is_the_worst_consequence() {
    let consequences = |all: &[Option<&'static str>]| consequences(all.iter().copied(), CONTAINERS);
    assert_eq!(consequences(&[Some("a"), None]), "containers will not run");
    let own = [Some("a"), Some("b"), Some("a")];
    assert_eq!(consequences(&own), "containers will run, but a, and b");
}
