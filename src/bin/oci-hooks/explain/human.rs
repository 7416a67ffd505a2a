//! Human-readable output of `explain`.

use std::collections::HashSet;
use std::path::Path;

use oci_hooks::hooks::consumer::BadFilePolicy;
use oci_hooks::hooks::{Consumer, LoadedHooks};
use oci_hooks_cli::terminal::escape_control;

use super::report::{ExplainReport, FileReport, FileState, first_fatal};
use crate::context::CommandContext;
use crate::directories::UnreadDirReport;
use crate::error::{Diagnostic, HooksCommandError};
use crate::style;

/// Additional indentation of continuation lines.
const WRAPPED: usize = 4;

/// Writes the report, directory by directory, and the hooks that the configuration has.
pub fn write(
    report: &ExplainReport,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    write_verdicts(report, context)?;
    if report.hooks.is_empty() {
        return Ok(());
    }
    let title = context.paint.paint(style::TITLE, "Hooks in config.json");
    context.line(format!("\n{title}"))?;
    for hook in &report.hooks {
        let missing = if hook.exists == Some(false) { ", which does not exist" } else { "" };
        let path = printable(&hook.path);
        let origin = printable(&hook.origin.to_string());
        let line = format!("  {}  {path}{missing}: {origin}", hook.stage);
        context.write_hanging_line(line, 2 + WRAPPED)?;
    }
    Ok(())
}

fn write_verdicts(
    report: &ExplainReport,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    let target = &report.target;
    let command = target.command.as_deref().map_or("no command".to_owned(), |c| format!("`{c}`"));
    let command = printable(&command);
    let title = format!(
        "{} for a container that runs {command}, has {} and {} bind mounts",
        context.paint.paint(style::TITLE, report.consumer),
        count(target.annotations.len(), "annotation"),
        if target.has_bind_mounts { "has" } else { "no" },
    );
    context.write_hanging_line(title, WRAPPED)?;
    for fact in report.container.iter().flat_map(|container| &container.facts) {
        let source = context.paint.paint(style::FAINT, format_args!("({})", fact.source));
        let line = format!("  {}: {} {source}", fact.fact, printable(&fact.value));
        context.write_hanging_line(line, 2 + WRAPPED)?;
    }
    if context.verbose {
        for (key, value) in &target.annotations {
            let line = format!("  {key}={value}");
            context.write_hanging_line(printable(&line), 2 + WRAPPED)?;
        }
    }
    if !target.unclear_mounts.is_empty() {
        let (condition, value) = match target.has_bind_mounts {
            true => ("if the user did not", false),
            false => ("if the user did", true),
        };
        let line = format!(
            "uncertain: config.json does not tell who requested the mount at {}; {condition}, pass --has-bind-mounts {value}",
            printable(&target.unclear_mounts.join(", ")),
        );
        context.write_hanging_line(line, WRAPPED)?;
    }
    if target.unclear_annotations {
        let line = "uncertain: engines write only some annotations of pods and containers into config.json; pass \
                    the others with --annotation";
        context.write_hanging_line(line, WRAPPED)?;
    }
    if let Some(reason) = &report.exempt {
        let label = context.paint.paint(style::WARNING, "No hook is injected:");
        return context.write_hanging_line(format!("{label} {reason}"), WRAPPED);
    }
    for request in &report.cdi {
        let devices = request.devices.join(", ");
        let line =
            format!("CDI adds {devices}, requested by the annotation {}", request.annotation);
        context.write_hanging_line(printable(&line), WRAPPED)?;
    }
    if let (Some(source), None) = (&report.source, &report.container) {
        context.write_hanging_line(format!("directories from {}", source.decided_by), WRAPPED)?;
    }
    if report.directories.is_empty() {
        context.line(format!("{} reads no hook directory", report.consumer))?;
    }
    let mut hints = HashSet::new();
    for dir in &report.directories {
        context.write("\n")?;
        let missing = if dir.exists { "" } else { "  (does not exist)" };
        let path = context.paint.paint(style::TITLE, printable(&dir.path));
        context.line(format!("{path}{missing}"))?;
        let widths = dir.files.iter().map(|file| printable(&file.name).chars().count());
        let width = widths.max().unwrap_or(0);
        for file in &dir.files {
            write_file(file, width, &mut hints, context)?;
        }
    }
    for dir in &report.unread {
        write_unread(dir, report.consumer, context)?;
    }
    context.write("\n")?;
    write_summary(report, context)
}

/// Writes a directory that has hook files and is not read.
fn write_unread(
    dir: &UnreadDirReport,
    consumer: &str,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    let path = context.paint.paint(style::TITLE, &dir.path);
    context.line(format!("\n{path}  (not read by {consumer})"))?;
    for name in &dir.files {
        let (mark, word) = ("-", context.paint.paint(style::WARNING, "not read"));
        let mark = context.paint.paint(style::WARNING, mark);
        context.line(format!("  {mark} {}  {word}", printable(name)))?;
    }
    let label = context.paint.paint(style::HINT, "hint:");
    context.write_hanging_line(format!("    {label} {}", dir.hint), 4 + WRAPPED)
}

fn write_file<'r>(
    file: &'r FileReport,
    width: usize,
    hints: &mut HashSet<&'r str>,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    let (style, mark, word) = match file.state {
        FileState::Injected => (style::GOOD, "+", "injected"),
        FileState::NotMatched => (style::WARNING, "-", "not injected"),
        FileState::MatchError => (style::BAD, "!", "cannot be matched"),
        FileState::Masked => (style::FAINT, "-", "masked"),
        FileState::Broken => (style::BAD, "!", "broken"),
        FileState::NoProgram => (style::BAD, "!", "dropped"),
        FileState::Ignored => (style::FAINT, "-", "not read"),
    };
    let mark = context.paint.paint(style, mark);
    let word = context.paint.paint(style, word);
    let name = format!("{:<width$}", printable(&file.name));
    let stages = match file.state {
        FileState::Injected if file.stages.is_empty() => " at no stage".to_owned(),
        FileState::Injected => format!(" at {}", file.stages.join(", ")),
        _ => String::new(),
    };
    let position = file.problem.as_ref().and_then(|problem| {
        let at = problem.location.as_ref()?;
        Some(format!(" at {}:{} {}", at.line, at.column, printable(&at.pointer)))
    });
    let reason = printable(match file.state {
        FileState::Masked => file.reason.trim_start_matches("masked "),
        _ => &file.reason,
    });
    let position = position.unwrap_or_default();
    let position = position.trim_end();
    let separator = if file.state == FileState::Masked { " " } else { ": " };
    let indent = 4 + width + 2;
    let line = format!("  {mark} {name}  {word}{stages}{position}{separator}{reason}");
    context.write_hanging_line(line, indent)?;
    if file.conditions.len() > 1 || context.verbose {
        for condition in &file.conditions {
            let (style, mark) =
                if condition.holds { (style::GOOD, "yes") } else { (style::WARNING, "no ") };
            let mark = context.paint.paint(style, mark);
            let line = format!("{:indent$}{mark} {}", "", printable(&condition.text));
            context.write_hanging_line(line, indent + WRAPPED)?;
        }
    }
    let label = context.paint.paint(style::HINT, "hint:");
    let hint = file.problem.as_ref().and_then(|problem| problem.hint.as_deref());
    // Each hint is printed once.
    if let Some(hint) = hint.filter(|hint| hints.insert(hint)) {
        context.write_hanging_line(format!("{:indent$}{label} {hint}", ""), indent + WRAPPED)?;
    }
    for finding in &file.findings {
        let code = context.paint.paint(style::WARNING, finding.code);
        let line =
            format!("{:indent$}{code}{}: {}", "", finding.position_suffix(), finding.message);
        context.write_hanging_line(line, indent + WRAPPED)?;
        if let Some(hint) = finding.hint.as_deref().filter(|hint| hints.insert(hint)) {
            context
                .write_hanging_line(format!("{:indent$}{label} {hint}", ""), indent + WRAPPED)?;
        }
    }
    Ok(())
}

fn write_summary(
    report: &ExplainReport,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    if let Some(fatal) = &report.fatal {
        let line = match is_own_limit(fatal.class) && !report.is_injected_by_us() {
            true => format!(
                "{} {} is too large for oci-hooks, though not for {}",
                context.paint.paint(style::BAD, "Unknown:"),
                printable(&fatal.path.as_deref().unwrap_or(Path::new("")).to_string_lossy()),
                report.consumer
            ),
            false => format!(
                "{} {} {} because of {fatal}",
                context.paint.paint(style::BAD, "No hook is injected:"),
                report.consumer,
                refusal(&context.consumer),
            ),
        };
        return context.write_hanging_line(line, WRAPPED);
    }
    if let Some(file) = report.files().find(|file| file.state == FileState::MatchError) {
        let line = format!(
            "{} {} cannot be matched, so the container does not start",
            context.paint.paint(style::BAD, "No hook is injected:"),
            printable(&file.path),
        );
        return context.write_hanging_line(line, WRAPPED);
    }
    let mut injected: Vec<_> = report.files().filter(|file| file.order.is_some()).collect();
    injected.sort_by_key(|file| file.order);
    if injected.is_empty() {
        let more =
            if report.hooks.is_empty() { "" } else { " in addition to those of config.json" };
        return context.line(format!("No hook is injected{more}."));
    }
    let names: Vec<_> = injected.iter().map(|file| printable(&file.name)).collect();
    context.write_hanging_line(format!("Injected in this order: {}", names.join(", ")), WRAPPED)
}

/// Returns the consequence of a hook file that a consumer rejects.
pub fn refusal(consumer: &Consumer) -> &'static str {
    match consumer.bad_files {
        BadFilePolicy::NoHooks => "does not start, and containers start without hooks,",
        BadFilePolicy::NoContainers | BadFilePolicy::Skipped => "cannot start any container",
    }
}

/// Warns if a hook file or a directory stops the consumer.
pub fn warn_of_refusal(loaded: &LoadedHooks, context: &CommandContext) {
    if let Some(fatal) = first_fatal(loaded).filter(|fatal| !is_own_limit(fatal.source.class())) {
        let (name, path) = (context.consumer.name, fatal.path.display());
        let message = format!("{name} {} because of {path}", refusal(&context.consumer));
        context.warn(&Diagnostic::new(fatal.source.class(), None, message));
    }
}

/// Returns whether a consumer may accept a hook file with this error: only this program and the wrapper limit its size.
pub fn is_own_limit(class: &str) -> bool {
    class == "too-large"
}

/// Escapes control characters, which could change the terminal or add lines: containers and file names may have them.
fn printable(text: &str) -> String {
    escape_control(text.as_bytes())
}

fn count(number: usize, noun: &str) -> String {
    match number {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
