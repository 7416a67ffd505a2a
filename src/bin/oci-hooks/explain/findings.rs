//! What `lint` says of a file that is explained.

use std::path::Path;

use oci_hooks::hooks::Consumer;
use oci_hooks::hooks::lint::{self, Finding, LintOptions, Severity};
use oci_hooks::json::Location;
use oci_hooks::sys::fs::read_bounded;
use serde::Serialize;

/// A finding about the text of a file.
#[derive(Serialize)]
pub(super) struct FindingJson {
    pub(super) code: &'static str,
    rule: &'static str,
    severity: &'static str,
    line: Option<usize>,
    column: Option<usize>,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl FindingJson {
    fn new(finding: &Finding) -> Self {
        let location = finding.location.as_ref();
        FindingJson {
            code: finding.rule.code,
            rule: finding.rule.name,
            severity: finding.severity.name(),
            line: location.map(|at| at.line),
            column: location.map(|at| at.column),
            message: finding.message.clone(),
            help: finding.help.clone(),
        }
    }

    /// Returns where it is, as ` at 3:5`.
    pub(super) fn at(&self) -> String {
        match (self.line, self.column) {
            (Some(line), Some(column)) => format!(" at {line}:{column}"),
            _ => String::new(),
        }
    }
}

/// No longer file is written by hand; what is wrong with one that is, `lint` says.
const MAX_BYTES: u64 = 64 << 10;

/// Returns the errors and warnings about the text of a file, but not what is known of it already.
pub(super) fn of_file(
    path: &Path,
    consumer: &Consumer,
    known: Option<&Location>,
) -> Vec<FindingJson> {
    let Ok(text) = read_bounded(path, MAX_BYTES) else { return Vec::new() };
    let mut options = LintOptions::for_consumer(consumer);
    options.others.clear();
    let findings = lint::lint_text(path, &text, &options);
    let is_new = |finding: &&Finding| {
        let location = finding.location.as_ref();
        let is_known = known.is_some_and(|known| {
            location.is_some_and(|at| (at.line, at.column) == (known.line, known.column))
        });
        finding.severity > Severity::Note && !is_known
    };
    findings.iter().filter(is_new).map(FindingJson::new).collect()
}
