//! Human-readable output of `explain`.

use std::path::Path;

use super::report::{FileReport, FileState, Report};
use crate::context::Context;
use crate::error::Error;
use crate::style;

/// Writes the report, directory by directory.
pub(super) fn write(report: &Report, context: &mut Context) -> Result<(), Error> {
    let target = &report.target;
    let command = target.command.as_deref().map_or("no command".to_owned(), |c| format!("`{c}`"));
    context.line(format!(
        "{} for a container that runs {command}, has {} and {} bind mounts",
        context.paint.paint(style::TITLE, report.consumer),
        count(target.annotations.len(), "annotation"),
        if target.has_bind_mounts { "has" } else { "no" },
    ))?;
    if context.verbose {
        for (key, value) in &target.annotations {
            context.line(format!("  {key}={value}"))?;
        }
    }
    for dir in &report.directories {
        context.write("\n")?;
        let missing = if dir.exists { "" } else { "  (does not exist)" };
        let path = context.paint.paint(style::TITLE, &dir.path);
        context.line(format!("{path}{missing}"))?;
        let width = dir.files.iter().map(|file| file.name.chars().count()).max().unwrap_or(0);
        for file in &dir.files {
            write_file(file, width, context)?;
        }
    }
    context.write("\n")?;
    write_summary(report, context)
}

fn write_file(file: &FileReport, width: usize, context: &mut Context) -> Result<(), Error> {
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
    let name = format!("{:<width$}", file.name);
    let stages = match file.state {
        FileState::Injected if file.stages.is_empty() => " at no stage".to_owned(),
        FileState::Injected => format!(" at {}", file.stages.join(", ")),
        _ => String::new(),
    };
    let position = file.problem.as_ref().and_then(|problem| {
        let at = problem.location.as_ref()?;
        Some(format!(" at {}:{} {}", at.line, at.column, at.pointer))
    });
    let reason = match file.state {
        FileState::Masked => file.reason.trim_start_matches("masked ").to_owned(),
        _ => file.reason.clone(),
    };
    let position = position.unwrap_or_default();
    let position = position.trim_end();
    let separator = if file.state == FileState::Masked { " " } else { ": " };
    context.line(format!("  {mark} {name}  {word}{stages}{position}{separator}{reason}"))?;
    if file.conditions.len() > 1 || context.verbose {
        for condition in &file.conditions {
            let (style, mark) =
                if condition.holds { (style::GOOD, "yes") } else { (style::WARNING, "no ") };
            let mark = context.paint.paint(style, mark);
            context.line(format!("    {:<width$}  {mark} {}", "", condition.text))?;
        }
    }
    if let Some(hint) = file.problem.as_ref().and_then(|problem| problem.hint.as_ref()) {
        let label = context.paint.paint(style::HINT, "hint:");
        context.line(format!("    {:<width$}  {label} {hint}", ""))?;
    }
    Ok(())
}

fn write_summary(report: &Report, context: &mut Context) -> Result<(), Error> {
    if let Some(fatal) = &report.fatal {
        return context.line(format!(
            "{} {} cannot start any container because of {}",
            context.paint.paint(style::BAD, "No hook is injected:"),
            report.consumer,
            fatal.path.as_deref().unwrap_or(Path::new("")).display(),
        ));
    }
    if let Some(file) = report.files().find(|file| file.state == FileState::MatchError) {
        return context.line(format!(
            "{} {} cannot be matched, so the container does not start",
            context.paint.paint(style::BAD, "No hook is injected:"),
            file.path,
        ));
    }
    let mut injected: Vec<_> = report.files().filter(|file| file.order.is_some()).collect();
    injected.sort_by_key(|file| file.order);
    if injected.is_empty() {
        return context.line("No hook is injected.");
    }
    let names: Vec<_> = injected.iter().map(|file| file.name.as_str()).collect();
    context.line(format!("Injected in this order: {}", names.join(", ")))
}

fn count(number: usize, noun: &str) -> String {
    match number {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
