//! What was looked at, and how it is.

use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::style;

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Ok,
    /// Jobs run, but not all of them or not as well as they could.
    Warn,
    /// Jobs do not run.
    Fail,
}

/// Something that was looked at.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    name: &'static str,
    status: Status,
    /// What is there.
    found: String,
    /// What to do about it.
    mend: Option<String>,
}

impl Check {
    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Check { name, status: Status::Ok, found: found.into(), mend: None }
    }

    pub(crate) fn warn(
        name: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Check { name, status: Status::Warn, found: found.into(), mend: Some(mend.into()) }
    }

    pub(crate) fn fail(
        name: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Check { name, status: Status::Fail, found: found.into(), mend: Some(mend.into()) }
    }
}

/// The whole, for programs.
#[derive(Serialize)]
struct Json<'a> {
    ok: bool,
    checks: &'a [Check],
}

/// Tells how everything is, and returns whether anything has to be mended.
pub(crate) fn report(checks: &[Check], context: &mut Context) -> Result<Exit, Error> {
    let ok = checks.iter().all(|check| check.status != Status::Fail);
    if context.is_json() {
        context.json(&Json { ok, checks })?;
    } else {
        show(checks, context)?;
    }
    Ok(if ok { Exit::Done } else { Exit::Findings })
}

fn show(checks: &[Check], context: &mut Context) -> Result<(), Error> {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or_default();
    for check in checks {
        let (style, status) = match check.status {
            Status::Ok => (style::GOOD, "ok  "),
            Status::Warn => (style::WARNING, "warn"),
            Status::Fail => (style::BAD, "fail"),
        };
        let status = context.paint.paint(style, status);
        context.line(format!("{status}  {:width$}  {}", check.name, check.found))?;
        for line in check.mend.iter().flat_map(|mend| mend.lines()) {
            let line = context.paint.paint(style::HINT, line);
            context.line(format!("      {:width$}  {line}", ""))?;
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    let summary = match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => "all is well".to_owned(),
        (0, warnings) => format!("containers run; {warnings} to look at"),
        (failures, warnings) => {
            format!("containers do not run: {failures} to mend, {warnings} to look at")
        }
    };
    context.line(context.paint.paint(style::FAINT, summary))
}
