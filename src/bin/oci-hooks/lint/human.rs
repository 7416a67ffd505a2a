//! Human-readable findings, each with its source line.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use oci_hooks::hooks::lint::{HookFinding, LintReport, LintedFile, Severity};
use oci_hooks::json::TextLocation;
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_files::quantity::format_count;

use crate::context::CommandContext;
use crate::error::HooksCommandError;
use crate::style;

/// Maximum length of the part of a source line that is shown.
const MAX_LINE_BYTES: usize = 120;

/// The notes to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteFilter {
    All,
    /// All notes, if there are no errors or warnings.
    Alone,
}

/// Writes each finding with its line, sorted by severity within a file, and a summary.
pub fn write(
    report: &LintReport,
    notes: NoteFilter,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    let renderer = if context.paint.enabled { Renderer::styled() } else { Renderer::plain() };
    let renderer = renderer.decor_style(DecorStyle::Ascii);
    let is_worse = report.findings().any(|finding| finding.severity > Severity::Note);
    let least = match notes {
        NoteFilter::Alone if is_worse => Severity::Warning,
        _ => Severity::Note,
    };
    // Each hint is printed once.
    let mut printed_hints = HashSet::new();
    for file in &report.files {
        let mut findings: Vec<_> =
            file.findings.iter().filter(|finding| finding.severity >= least).collect();
        findings.sort_by_key(|finding| Reverse(finding.severity));
        for finding in findings {
            let hint = finding.hint.as_deref();
            let hint = hint.filter(|hint| printed_hints.insert((finding.rule.code, *hint)));
            // After a separate `Origin`, the renderer takes the snippet for one of another file, and prints `:::`.
            let shown = renderer.render(&[group(finding, hint, file)]);
            let lines = shown.lines().filter(|line| style::strip(line).trim() != ":::");
            context.line(lines.collect::<Vec<_>>().join("\n"))?;
            context.write("\n")?;
        }
    }
    summary(report, least, context)
}

fn group<'a>(finding: &'a HookFinding, hint: Option<&'a str>, file: &'a LintedFile) -> Group<'a> {
    let level = match finding.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let mut group =
        Group::with_title(level.primary_title(finding.message.as_str()).id(finding.rule.code));
    let path = escape_control(finding.path.as_os_str().as_bytes());
    group = match (&finding.location, &file.text) {
        (Some(location), Some(text)) => {
            let line = SourceLine::of(text, location);
            let snippet = Snippet::source(line.text)
                .line_start(location.line)
                .fold(false)
                .annotation(AnnotationKind::Primary.span(line.span));
            // The renderer counts columns in the shown text, so its columns are right only for whole lines.
            if line.is_whole {
                group.element(snippet.path(path))
            } else {
                let origin = Origin::path(path).line(location.line).char_column(location.column);
                group.element(origin).element(snippet)
            }
        }
        (Some(location), None) => {
            let origin = Origin::path(path).line(location.line);
            group.element(origin.char_column(location.column))
        }
        (None, _) => group.element(Origin::path(path)),
    };
    for related in &finding.related {
        let at = related.location.as_ref();
        let position = at.map_or_else(String::new, |at| format!(":{}:{}", at.line, at.column));
        let path = escape_control(related.path.as_os_str().as_bytes());
        let text = format!("{}: {path}{position}", related.message);
        group = group.element(Level::NOTE.message(text));
    }
    if let Some(hint) = hint {
        group = group.element(Level::HELP.with_name("hint").message(hint));
    }
    group
}

/// One source line, truncated around the span of a finding.
struct SourceLine {
    text: String,
    span: Range<usize>,
    is_whole: bool,
}

impl SourceLine {
    fn of(text: &[u8], location: &TextLocation) -> Self {
        let start = location.span.start.min(text.len());
        let first = text[..start].iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        let end =
            text[start..].iter().position(|&b| b == b'\n').map_or(text.len(), |at| start + at);
        let end = first + text[first..end].trim_ascii_end().len().max(start - first);
        let span = start..location.span.end.clamp(start, end.max(start));
        // A long line is truncated around the span.
        let from = if end - first > MAX_LINE_BYTES {
            boundary(text, start.saturating_sub(MAX_LINE_BYTES / 2).max(first))
        } else {
            first
        };
        let to = boundary(text, end.min(from + MAX_LINE_BYTES)).max(start);
        let marked_end = next_boundary(text, span.end.min(to));
        let to = to.max(marked_end);
        let is_whole = from == first && to == end;
        let mut shown = if from > first { "…".to_owned() } else { String::new() };
        shown += &String::from_utf8_lossy(&text[from..start]);
        let marked_from = shown.len();
        shown += &String::from_utf8_lossy(&text[start..marked_end]);
        let marked_to = shown.len();
        shown += &String::from_utf8_lossy(&text[marked_end..to]);
        if to < end {
            shown.push('…');
        }
        SourceLine { text: shown, span: marked_from..marked_to, is_whole }
    }
}

/// Returns the start of the UTF-8 character at an offset.
fn boundary(text: &[u8], at: usize) -> usize {
    let is_inside = |&&at: &&usize| text.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
    let candidates = [at, at.saturating_sub(1), at.saturating_sub(2), at.saturating_sub(3)];
    candidates.iter().find(|at| !is_inside(at)).copied().unwrap_or(at)
}

/// Returns the end of the UTF-8 character before or around an offset.
fn next_boundary(text: &[u8], at: usize) -> usize {
    let inside = text[at..].iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80);
    at + inside.count()
}

fn summary(
    report: &LintReport,
    least: Severity,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    let files = match report.spec_files {
        0 => format_count(report.hook_files, "hook file"),
        number => format_count(number, "CDI specification"),
    };
    let counts: Vec<_> = [Severity::Error, Severity::Warning, Severity::Note]
        .into_iter()
        .filter_map(|severity| {
            let number = report.count(severity);
            (number > 0).then(|| {
                let style = match severity {
                    Severity::Error => style::BAD,
                    Severity::Warning => style::WARNING,
                    Severity::Note => style::HINT,
                };
                context.paint.paint(style, format_count(number, severity.name()))
            })
        })
        .collect();
    if counts.is_empty() {
        return context.line(format!("{files}, no findings"));
    }
    context.line(format!("{files}: {}", counts.join(", ")))?;
    if least > Severity::Note && report.count(Severity::Note) > 0 {
        context.line("--verbose shows the notes")?;
    }
    let fixable = report.findings().filter(|finding| finding.is_fixable()).count();
    if fixable > 0 {
        context.line(format!("{} fixable with --fix", format_count(fixable, "finding")))?;
    }
    if let Some(first) = report.findings().max_by_key(|finding| finding.severity) {
        let command = format!("oci-hooks lint --explain {}", first.rule.code);
        context
            .line(format!("{} explains a finding", context.paint.paint(style::TITLE, command)))?;
    }
    Ok(())
}
