//! Findings as [workflow commands], which GitHub shows beside the changed lines.
//!
//! [workflow commands]: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands

use oci_hooks::hooks::lint::{LintReport, Severity};

use super::sarif::TextRegion;
use crate::context::CommandContext;
use crate::error::HooksCommandError;

/// Writes a line for each finding.
pub fn write(report: &LintReport, context: &mut CommandContext) -> Result<(), HooksCommandError> {
    for file in &report.files {
        for finding in &file.findings {
            let command = match finding.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
                Severity::Note => "notice",
            };
            let mut line =
                format!("::{command} file={}", property(&finding.path.to_string_lossy()));
            if let Some(location) = &finding.location {
                let region = TextRegion::new(location, file);
                line += &format!(",line={},endLine={}", region.line, region.end_line);
                // GitHub accepts columns only for a span within one line.
                if region.line == region.end_line {
                    line += &format!(",col={},endColumn={}", region.column, region.end_column);
                }
            }
            let title = format!("{} {}", finding.rule.code, finding.rule.name);
            let mut text = finding.message.clone();
            if let Some(hint) = &finding.hint {
                text = format!("{text}\n{hint}");
            }
            context.line(format!("{line},title={}::{}", property(&title), data(&text)))?;
        }
    }
    Ok(())
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_workflow_commands_are_escaped() {
        assert_eq!(data("100%\r\na:b,c"), "100%25%0D%0Aa:b,c");
        assert_eq!(property("a:b,c%\n"), "a%3Ab%2Cc%25%0A");
    }
}
