//! `container-hook doctor`.

mod host;
mod network;
mod runner;
mod runtimes;
mod storage;
mod version;

use clap::Args;
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;
use crate::style;

/// Check what containers need on this machine, and say how to mend what is missing
#[derive(Debug, Args)]
#[command(after_help = "\
Run it as root, as the hook runs. Exit status is 0 if nothing has to be mended, and 1 otherwise.")]
pub(crate) struct DoctorArgs {}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Jobs run, but not all of them or not as well as they could.
    Warn,
    /// Jobs do not run.
    Fail,
}

/// Something that was looked at.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    /// What is there.
    found: String,
    /// What to do about it.
    mend: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Check { name, status: Status::Ok, found: found.into(), mend: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Check { name, status: Status::Warn, found: found.into(), mend: Some(mend.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Check { name, status: Status::Fail, found: found.into(), mend: Some(mend.into()) }
    }
}

/// The whole, for programs.
#[derive(Serialize)]
struct Json<'a> {
    ok: bool,
    checks: &'a [Check],
}

pub(crate) fn run(_: &DoctorArgs, context: &mut Context) -> Result<Exit, Error> {
    let loaded = context.settings()?;
    let settings = &loaded.settings;
    let mut checks = vec![runner::user(), runner::settings(&loaded)];
    checks.extend(host::checks());
    checks.extend(runtimes::checks(settings));
    checks.extend(storage::checks(settings));
    checks.extend(network::checks(settings));
    checks.extend(runner::checks(settings));

    let ok = checks.iter().all(|check| check.status != Status::Fail);
    if context.is_json() {
        context.json(&Json { ok, checks: &checks })?;
    } else {
        show(&checks, context)?;
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
        (0, warnings) => format!("jobs run; {warnings} to look at"),
        (failures, warnings) => {
            format!("jobs do not run: {failures} to mend, {warnings} to look at")
        }
    };
    context.line(context.paint.paint(style::FAINT, summary))
}
