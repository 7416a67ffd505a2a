//! Unified diffs of JSON texts.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use oci_hooks::json::JsonDocument;
use oci_hooks_cli::terminal::escape_control;
use similar::{ChangeTag, TextDiff};

use crate::context::CommandContext;
use crate::error::HooksCommandError;
use crate::style;

/// Size limit of texts to compare: the diff needs more memory for each line than the line itself.
const MAX_BYTES: u64 = 8 << 20;

/// Writes the difference between two JSON texts. If one of them is on one line, like the output of
/// precreate hooks, both are pretty-printed first.
pub fn write(
    context: &mut CommandContext,
    old: &[u8],
    new: &[u8],
    name: &str,
) -> Result<(), HooksCommandError> {
    check_size(old, new, name)?;
    let laid_out = is_one_line(old) || is_one_line(new);
    write_lines(context, &lines(old, laid_out), &lines(new, laid_out), name)
}

/// Writes the difference between two texts as they are.
pub fn write_exact(
    context: &mut CommandContext,
    old: &[u8],
    new: &[u8],
    name: &str,
) -> Result<(), HooksCommandError> {
    check_size(old, new, name)?;
    write_lines(context, &lines(old, false), &lines(new, false), name)
}

fn check_size(old: &[u8], new: &[u8], name: &str) -> Result<(), HooksCommandError> {
    if old.len().max(new.len()) as u64 > MAX_BYTES {
        return Err(HooksCommandError::TooLarge {
            path: PathBuf::from(name),
            limit_bytes: MAX_BYTES,
        });
    }
    Ok(())
}

fn write_lines(
    context: &mut CommandContext,
    old: &str,
    new: &str,
    name: &str,
) -> Result<(), HooksCommandError> {
    let diff = TextDiff::from_lines(old, new);
    let name = escape_control(name.as_bytes());
    // In a file or pipe, the diff is a patch, whose lines must be those of the file.
    let is_terminal = io::stdout().is_terminal();
    let mut wrote_header = false;
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        if !wrote_header {
            context.line(context.paint.paint(style::TITLE, format_args!("--- {name}")))?;
            context.line(context.paint.paint(style::TITLE, format_args!("+++ {name}")))?;
            wrote_header = true;
        }
        context.line(context.paint.paint(style::HINT, hunk.header()))?;
        for change in hunk.iter_changes() {
            let mut line = Cow::Borrowed(change.value().trim_end_matches('\n'));
            if is_terminal {
                line = escape_control(line.as_bytes()).into();
            }
            context.line(match change.tag() {
                ChangeTag::Delete => context.paint.paint(style::BAD, format_args!("-{line}")),
                ChangeTag::Insert => context.paint.paint(style::GOOD, format_args!("+{line}")),
                ChangeTag::Equal => format!(" {line}"),
            })?;
        }
    }
    Ok(())
}

fn is_one_line(text: &[u8]) -> bool {
    !text.trim_ascii_end().contains(&b'\n')
}

fn lines(text: &[u8], laid_out: bool) -> String {
    // The compact form is made first, because it normalizes strings.
    let compact = JsonDocument::parse(text).ok().filter(|_| laid_out).map(|it| it.to_compact());
    let pretty =
        compact.as_deref().and_then(|it| Some(JsonDocument::parse(it).ok()?.to_pretty("  ")));
    String::from_utf8_lossy(pretty.as_deref().unwrap_or(text)).into_owned()
}
