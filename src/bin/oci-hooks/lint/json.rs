//! Machine-readable findings: a JSON array with documented keys.

use oci_hooks::hooks::lint::{HookFinding, LintReport, LintedFile};
use oci_hooks::json::TextLocation;
use serde::Serialize;

use super::sarif::TextRegion;
use crate::context::CommandContext;
use crate::error::HooksCommandError;

#[derive(Serialize)]
struct FindingJson<'a> {
    code: &'static str,
    rule: &'static str,
    severity: &'static str,
    path: String,
    #[serde(flatten)]
    location: SourceLocation<'a>,
    message: &'a str,
    hint: Option<&'a str>,
    related: Vec<RelatedJson<'a>>,
    fix: Option<FixJson<'a>>,
}

/// A position in a file. Lines and columns count from 1, and columns are in characters; the offset
/// and the length are in bytes.
#[derive(Serialize)]
struct SourceLocation<'a> {
    line: Option<usize>,
    column: Option<usize>,
    end_line: Option<usize>,
    end_column: Option<usize>,
    offset: Option<usize>,
    length: Option<usize>,
    pointer: Option<&'a str>,
}

#[derive(Serialize)]
struct RelatedJson<'a> {
    path: String,
    line: Option<usize>,
    column: Option<usize>,
    pointer: Option<&'a str>,
    message: &'a str,
}

#[derive(Serialize)]
struct FixJson<'a> {
    description: &'a str,
    edits: Vec<EditJson>,
}

#[derive(Serialize)]
struct EditJson {
    offset: usize,
    length: usize,
    text: String,
}

/// Writes all findings as one array.
pub fn write(report: &LintReport, context: &mut CommandContext) -> Result<(), HooksCommandError> {
    let findings: Vec<_> = report
        .files
        .iter()
        .flat_map(|file| file.findings.iter().map(move |finding| FindingJson::new(finding, file)))
        .collect();
    context.json(&findings)
}

impl<'a> FindingJson<'a> {
    fn new(finding: &'a HookFinding, file: &LintedFile) -> Self {
        FindingJson {
            code: finding.rule.code,
            rule: finding.rule.name,
            severity: finding.severity.name(),
            path: finding.path.to_string_lossy().into_owned(),
            location: SourceLocation::new(finding.location.as_ref(), file),
            message: &finding.message,
            hint: finding.hint.as_deref(),
            related: finding
                .related
                .iter()
                .map(|related| RelatedJson {
                    path: related.path.to_string_lossy().into_owned(),
                    line: related.location.as_ref().map(|at| at.line),
                    column: related.location.as_ref().map(|at| at.column),
                    pointer: related.location.as_ref().map(|at| at.pointer.as_str()),
                    message: &related.message,
                })
                .collect(),
            fix: finding.fix.as_ref().map(|fix| FixJson {
                description: &fix.description,
                edits: fix
                    .edits
                    .iter()
                    .map(|(span, text)| EditJson {
                        offset: span.start,
                        length: span.len(),
                        text: String::from_utf8_lossy(text).into_owned(),
                    })
                    .collect(),
            }),
        }
    }
}

impl<'a> SourceLocation<'a> {
    fn new(location: Option<&'a TextLocation>, file: &LintedFile) -> Self {
        let region = location.map(|location| TextRegion::new(location, file));
        SourceLocation {
            line: region.as_ref().map(|region| region.line),
            column: region.as_ref().map(|region| region.column),
            end_line: region.as_ref().map(|region| region.end_line),
            end_column: region.as_ref().map(|region| region.end_column),
            offset: location.map(|location| location.span.start),
            length: location.map(|location| location.span.len()),
            pointer: location.map(|location| location.pointer.as_str()),
        }
    }
}
