//! End positions of findings, computed from their byte spans.

use oci_hooks::hooks::lint::LintedFile;
use oci_hooks::json::Location;

/// Start and end of a span, lines and columns from 1; the end is after the last character.
pub(super) struct Region {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) end_line: usize,
    pub(super) end_column: usize,
}

impl Region {
    pub(super) fn new(location: &Location, file: &LintedFile) -> Self {
        let text = file.text.as_deref().unwrap_or_default();
        let end = location.span.end.min(text.len()).max(location.span.start);
        let end = Location::of_span(text, end..end);
        let (line, column) = (location.line, location.column);
        if (end.line, end.column) < (line, column) {
            return Region { line, column, end_line: line, end_column: column };
        }
        Region { line, column, end_line: end.line, end_column: end.column }
    }
}
