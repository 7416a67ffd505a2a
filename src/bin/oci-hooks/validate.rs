//! `oci-hooks validate`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::{
    Consumer, HookDefinition, LoadOptions, ParseOptions, PathCheck, SchemaVersion,
};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::terminal::escape_control;
use serde::Serialize;

use crate::context::CommandContext;
use crate::error::{Diagnostic, HooksCommandError};
use crate::explain::consumers::column;
use crate::style;

/// Check whether a consumer accepts hook files
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks validate my-hook.json
  oci-hooks validate --as crio *.json
  oci-hooks validate --consumers --no-path-check my-hook.json

`oci-hooks lint` finds mistakes in files that are accepted.

Exit status is 1 when a file is rejected, with --consumers by any consumer.")]
pub struct ValidateArgs {
    /// Hook files, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Check against every consumer
    #[arg(long)]
    consumers: bool,

    /// Accept hooks whose program does not exist
    #[arg(long)]
    no_path_check: bool,
}

/// The verdict of a consumer on a hook file.
#[derive(Serialize)]
struct ConsumerVerdict {
    accepted: bool,
    version: Option<SchemaVersion>,
    fault: Option<Diagnostic>,
}

#[derive(Serialize)]
struct ValidatedFile {
    path: String,
    #[serde(flatten)]
    verdicts: FileVerdicts,
}

#[derive(Serialize)]
#[serde(untagged)]
enum FileVerdicts {
    One(Box<ConsumerVerdict>),
    Each { consumers: BTreeMap<&'static str, ConsumerVerdict> },
}

pub fn run(
    args: &ValidateArgs,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    let mut rows = Vec::new();
    let mut errors = Vec::new();
    for path in &args.files {
        match context.read_hook(path) {
            Ok(text) => rows.push(args.row(path, &text, context)),
            Err(error) => errors.push(error),
        }
    }
    if context.is_json() {
        context.json(&rows)?;
    } else if args.consumers {
        write_table(&rows, context)?;
    } else {
        for row in &rows {
            write_verdict(row, context)?;
        }
    }
    context.fail_with(errors)?;
    let is_accepted = rows.iter().all(|row| row.verdicts().all(|v| v.accepted));
    Ok(if is_accepted { CliExit::Done } else { CliExit::Findings })
}

impl ValidateArgs {
    fn row(&self, path: &Path, text: &[u8], context: &CommandContext) -> ValidatedFile {
        let verdict = |consumer: &Consumer| {
            let options = LoadOptions::for_consumer(consumer);
            let path_check = if self.no_path_check { PathCheck::Skip } else { PathCheck::Exists };
            let schema = ParseOptions::new(&options.extension_stages).with_path_check(path_check);
            match HookDefinition::parse(text, schema) {
                Ok(HookDefinition { version, .. }) => {
                    ConsumerVerdict { accepted: true, version: Some(version), fault: None }
                }
                Err(fault) => {
                    let fault = Some(Diagnostic::of_fault(path, &fault));
                    ConsumerVerdict { accepted: false, version: None, fault }
                }
            }
        };
        let verdicts = if self.consumers {
            let each = Consumer::ALL.iter().map(|consumer| (consumer.name, verdict(consumer)));
            FileVerdicts::Each { consumers: each.collect() }
        } else {
            FileVerdicts::One(Box::new(verdict(&context.consumer)))
        };
        ValidatedFile { path: path.to_string_lossy().into_owned(), verdicts }
    }
}

impl ValidatedFile {
    fn verdicts(&self) -> Box<dyn Iterator<Item = &ConsumerVerdict> + '_> {
        match &self.verdicts {
            FileVerdicts::One(verdict) => Box::new(std::iter::once(&**verdict)),
            FileVerdicts::Each { consumers } => Box::new(consumers.values()),
        }
    }
}

fn write_verdict(
    row: &ValidatedFile,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    for verdict in row.verdicts() {
        if let Some(version) = verdict.version {
            let valid = context.paint.paint(style::GOOD, "valid");
            let path = escape_control(row.path.as_bytes());
            context.line(format!("{path}: {valid}, schema {}", version.name()))?;
        }
        if let Some(fault) = &verdict.fault {
            write_fault(fault, "", context)?;
        }
    }
    Ok(())
}

fn write_fault(
    diagnostic: &Diagnostic,
    who: &str,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    context.line(format!("{}{who}", context.paint.paint(style::BAD, diagnostic)))?;
    if let Some(hint) = &diagnostic.hint {
        context.line(format!("  {} {hint}", context.paint.paint(style::HINT, "hint:")))?;
    }
    Ok(())
}

/// Returns the names of the consumers that reject a file, as a suffix for a line; empty if all consumers do.
fn rejection_suffix(names: &[&str]) -> String {
    if names.len() == Consumer::ALL.len() {
        String::new()
    } else {
        format!(" ({})", names.join(", "))
    }
}

fn write_table(
    rows: &[ValidatedFile],
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    let paths: Vec<_> = rows.iter().map(|row| escape_control(row.path.as_bytes())).collect();
    let width = paths.iter().map(|path| path.chars().count()).max().unwrap_or(0).max(9);
    let mut header = format!("{:<width$}", "hook file");
    for consumer in Consumer::ALL {
        header += &format!("  {:<1$}", consumer.name, column(&consumer));
    }
    context.line(context.paint.paint(style::TITLE, header.trim_end()))?;
    let mut faults: Vec<(&Diagnostic, Vec<&str>)> = Vec::new();
    for (row, path) in rows.iter().zip(paths) {
        let FileVerdicts::Each { consumers } = &row.verdicts else { continue };
        let mut line = format!("{path:<width$}");
        for consumer in Consumer::ALL {
            let verdict = &consumers[consumer.name];
            let (style, word) =
                if verdict.accepted { (style::GOOD, "accepts") } else { (style::BAD, "rejects") };
            let word = format!("{word:<0$}", column(&consumer));
            line += &format!("  {}", context.paint.paint(style, word));
            if let Some(fault) = &verdict.fault {
                match faults.iter_mut().find(|(f, _)| f.to_string() == fault.to_string()) {
                    Some((_, names)) => names.push(consumer.name),
                    None => faults.push((fault, vec![consumer.name])),
                }
            }
        }
        context.line(line.trim_end())?;
    }
    for (fault, names) in faults {
        write_fault(fault, &rejection_suffix(&names), context)?;
    }
    Ok(())
}
