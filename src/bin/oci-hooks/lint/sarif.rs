//! Findings as [SARIF 2.1.0], for code scanning.
//!
//! [SARIF 2.1.0]: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use oci_hooks::hooks::lint::{FixPolicy, HookFinding, LintReport, LintRule, LintedFile, rules};
use oci_hooks::json::TextLocation;
use serde_json::{Value, json};

use crate::context::CommandContext;
use crate::error::HooksCommandError;

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// Writes one SARIF run with the findings and the catalogue of rules.
pub fn write(report: &LintReport, context: &mut CommandContext) -> Result<(), HooksCommandError> {
    let results: Vec<_> = report
        .files
        .iter()
        .flat_map(|file| file.findings.iter().map(move |finding| result(finding, file)))
        .collect();
    let rules: Vec<_> = rules::ALL.iter().map(|rule| descriptor(rule)).collect();
    context.json(&json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "oci-hooks",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    }))
}

fn descriptor(rule: &LintRule) -> Value {
    let fix = match rule.fix {
        FixPolicy::Automatic(what) => format!("Fixed by --fix: {what}."),
        FixPolicy::Manual(why) => format!("Not fixed by --fix: {why}."),
    };
    let (bad, good) = (rule.bad.text(), rule.good.text());
    json!({
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.explanation},
        "help": {
            "text": format!("{}\n\nWrong:\n{bad}\n\nRight:\n{good}\n\n{fix}", rule.explanation),
            "markdown": format!(
                "{}\n\nWrong:\n\n```\n{bad}\n```\n\nRight:\n\n```\n{good}\n```\n\n{fix}",
                rule.explanation
            ),
        },
        "defaultConfiguration": {"level": rule.severity.name()},
    })
}

fn result(finding: &HookFinding, file: &LintedFile) -> Value {
    let index = rules::ALL.iter().position(|rule| rule.code == finding.rule.code);
    let text = match &finding.hint {
        Some(hint) => format!("{}\n{hint}", finding.message),
        None => finding.message.clone(),
    };
    let mut result = json!({
        "ruleId": finding.rule.code,
        "ruleIndex": index,
        "level": finding.severity.name(),
        "message": {"text": text},
        "locations": [{
            "physicalLocation": physical_location(&finding.path, finding.location.as_ref(), file),
        }],
    });
    if !finding.related.is_empty() {
        let related = finding.related.iter().enumerate().map(|(id, related)| {
            // Only the text of the linted file is in memory.
            let location = related.location.as_ref().filter(|_| related.path == file.path);
            json!({
                "id": id,
                "message": {"text": related.message},
                "physicalLocation": physical_location(&related.path, location, file),
            })
        });
        result["relatedLocations"] = related.collect();
    }
    if let Some(fix) = &finding.fix {
        let replacements: Vec<_> = fix
            .edits
            .iter()
            .map(|(span, text)| {
                json!({
                    "deletedRegion": {"byteOffset": span.start, "byteLength": span.len()},
                    "insertedContent": {"text": String::from_utf8_lossy(text)},
                })
            })
            .collect();
        result["fixes"] = json!([{
            "description": {"text": fix.description},
            "artifactChanges": [{
                "artifactLocation": {"uri": uri(&finding.path)},
                "replacements": replacements,
            }],
        }]);
    }
    result
}

fn physical_location(path: &Path, location: Option<&TextLocation>, file: &LintedFile) -> Value {
    let mut physical = json!({"artifactLocation": {"uri": uri(path)}});
    if let Some(location) = location {
        let region = TextRegion::new(location, file);
        physical["region"] = json!({
            "startLine": region.line,
            "startColumn": region.column,
            "endLine": region.end_line,
            "endColumn": region.end_column,
            "byteOffset": location.span.start,
            "byteLength": location.span.len(),
        });
    }
    physical
}

/// Returns a path as a URI reference. Relative paths stay relative, as code scanning requires.
fn uri(path: &Path) -> String {
    let mut uri = if path.is_absolute() { "file://".to_owned() } else { String::new() };
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri += &format!("%{byte:02X}");
        }
    }
    uri
}

/// Start and end of a span, lines and columns from 1; the end is after the last character.
pub struct TextRegion {
    pub line: usize,
    pub column: usize,
    pub end_line: usize,
    pub end_column: usize,
}

impl TextRegion {
    pub fn new(location: &TextLocation, file: &LintedFile) -> Self {
        let text = file.text.as_deref().unwrap_or_default();
        let end = location.span.end.min(text.len()).max(location.span.start);
        let end = TextLocation::of_span(text, end..end);
        let (line, column) = (location.line, location.column);
        if (end.line, end.column) < (line, column) {
            return TextRegion { line, column, end_line: line, end_column: column };
        }
        TextRegion { line, column, end_line: end.line, end_column: end.column }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_uris() {
        assert_eq!(uri(Path::new("hooks.d/a b.json")), "hooks.d/a%20b.json");
        assert_eq!(uri(Path::new("/etc/ü:#.json")), "file:///etc/%C3%BC%3A%23.json");
    }
}
