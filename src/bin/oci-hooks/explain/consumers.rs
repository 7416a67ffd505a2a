//! `explain --consumers`: the outcome of each hook file for every consumer.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use oci_hooks::hooks::manage::ManageError;
use oci_hooks::hooks::{self, ConfigDocument, Consumer, LoadOptions};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::terminal::escape_control;
use serde::Serialize;

use super::human::{is_own_limit, refusal};
use super::report::{ExplainReport, FileState};
use super::{ExplainArgs, is_named};
use crate::context::CommandContext;
use crate::error::{HooksCommandError, add_config_path};
use crate::style;

/// One hook file, with the outcome for each consumer.
#[derive(Serialize)]
struct FileByConsumer {
    path: String,
    consumers: BTreeMap<&'static str, ConsumerOutcome>,
}

#[derive(Serialize)]
struct ConsumerOutcome {
    state: FileState,
    stages: Vec<String>,
    reason: String,
}

/// Writes a table with a row for each file that some consumer reads.
pub fn run(
    args: &ExplainArgs,
    config: &ConfigDocument<'_>,
    path: &Path,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    let mut rows: BTreeMap<String, BTreeMap<&'static str, ConsumerOutcome>> = BTreeMap::new();
    let mut failing = Vec::new();
    let mut injects = false;
    let annotations = add_config_path(path, config.annotations())?;
    for consumer in Consumer::ALL {
        let target = args.target.target(config, path, &consumer)?;
        let directories = match context.directories_as(&consumer) {
            Ok(directories) => directories,
            Err(error) => {
                failing.push((consumer, error.diagnostic()));
                continue;
            }
        };
        let mut load = LoadOptions::for_consumer(&consumer);
        load.dirs = directories.dirs;
        let loaded = hooks::load(&load);
        let mut report =
            ExplainReport::new(&loaded, &target, &consumer, |name| args.selects_hook(name));
        if let Some(reason) = consumer.exemption(&annotations) {
            report.exempt_hooks(reason);
        }
        injects |= report.injects_any();
        if let Some(fatal) = &report.fatal {
            failing.push((consumer.clone(), fatal.clone()));
        }
        for file in report.directories.into_iter().flat_map(|dir| dir.files) {
            if file.state != FileState::Ignored {
                let outcome =
                    ConsumerOutcome { state: file.state, stages: file.stages, reason: file.reason };
                rows.entry(file.path).or_default().insert(consumer.name, outcome);
            }
        }
    }
    let is_row = |name: &&OsString| rows.keys().any(|path| is_path_of(path, name));
    if let Some(name) = args.hook.iter().find(|name| !is_row(name)) {
        return Err(ManageError::NoSuchHook { name: name.clone() }.into());
    }
    let rows: Vec<_> =
        rows.into_iter().map(|(path, consumers)| FileByConsumer { path, consumers }).collect();
    if context.is_json() {
        context.json(&rows)?;
    } else {
        write_table(&rows, context)?;
        for (consumer, fatal) in failing {
            let name = context.paint.paint(style::BAD, consumer.name);
            context.line(match is_own_limit(fatal.class) {
                true => format!(
                    "{name}: result unknown: {fatal}; only oci-hooks has this limit, {} does not",
                    consumer.name
                ),
                false => format!("{name} {} because of {fatal}", refusal(&consumer)),
            })?;
        }
    }
    Ok(if injects { CliExit::Done } else { CliExit::Findings })
}

fn is_path_of(path: &str, name: &OsStr) -> bool {
    Path::new(path).file_name().is_some_and(|file| is_named(&file.to_string_lossy(), name))
}

/// Returns the width of a consumer's column, which fits its name and every outcome.
pub fn column(consumer: &Consumer) -> usize {
    consumer.name.len().max("no match".len())
}

fn write_table(
    rows: &[FileByConsumer],
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    let paths: Vec<_> = rows.iter().map(|row| escape_control(row.path.as_bytes())).collect();
    let width = paths.iter().map(|path| path.chars().count()).max().unwrap_or(0).max(9);
    let mut header = format!("{:<width$}", "hook file");
    for consumer in Consumer::ALL {
        header += &format!("  {:<1$}", consumer.name, column(&consumer));
    }
    context.line(context.paint.paint(style::TITLE, header.trim_end()))?;
    for (row, path) in rows.iter().zip(paths) {
        let mut line = format!("{path:<width$}");
        for consumer in Consumer::ALL {
            let (style, word) = match row.consumers.get(consumer.name).map(|outcome| outcome.state)
            {
                Some(FileState::Injected) => (style::GOOD, "injects"),
                Some(FileState::NotMatched) => (style::WARNING, "no match"),
                Some(FileState::Masked) => (style::FAINT, "masked"),
                Some(FileState::Broken) => (style::BAD, "rejects"),
                Some(FileState::NoProgram) => (style::BAD, "drops"),
                Some(FileState::MatchError) => (style::BAD, "fails"),
                Some(FileState::Ignored) | None => (style::FAINT, "not read"),
            };
            let word = format!("{word:<0$}", column(&consumer));
            line += &format!("  {}", context.paint.paint(style, word));
        }
        context.line(line.trim_end())?;
    }
    Ok(())
}
