//! `step-runner lint`.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use oci_hooks::step_runner::document::{Finding, Severity, lint};
use oci_hooks::step_runner::resolve::MAX_BYTES;
use oci_hooks::sys::fs::PathContext as _;

use crate::Exit;
use crate::error::Error;

/// Find mistakes in step files
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  step-runner lint build/step.yml          One file
  step-runner lint .                       All step.yml and func.yml beneath a directory
  step-runner lint --format json . | jq .  For scripts

Exit status is 0 if there is nothing worse than a note, 1 if there is, 2 if the command line is wrong.")]
pub(crate) struct LintArgs {
    /// Step files, directories with step files, or - for standard input
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// How findings are printed
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line each, for people
    Text,
    /// An object a line, for scripts
    Json,
}

/// The names that step files have.
const NAMES: [&str; 2] = ["step.yml", "func.yml"];

pub(crate) fn run(args: &LintArgs) -> Result<Exit, Error> {
    let mut files = Vec::new();
    for path in &args.paths {
        find(path, true, &mut files)?;
    }
    let mut is_bad = false;
    for file in &files {
        let (name, text, dir) = read(file)?;
        let findings = lint(&name, &text, dir);
        is_bad |= findings.iter().any(|finding| finding.severity != Severity::Note);
        for finding in &findings {
            print(finding, args.format).map_err(Error::Print)?;
        }
    }
    Ok(if is_bad { Exit::Failed } else { Exit::Done })
}

/// Collects the step files that a path stands for.
fn find(path: &Path, is_named: bool, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    let is_step_file = path.file_name().is_some_and(|name| NAMES.iter().any(|own| name == *own));
    if path.as_os_str() == "-" {
        files.push(path.to_owned());
    } else if fs::symlink_metadata(path).at("look at", path)?.is_dir() {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path).at("list", path)? {
            let name = entry.at("list", path)?.file_name();
            if !name.as_encoded_bytes().starts_with(b".") {
                entries.push(path.join(name));
            }
        }
        entries.sort();
        for entry in entries {
            find(&entry, false, files)?;
        }
    } else if is_named || is_step_file {
        files.push(path.to_owned());
    }
    Ok(())
}

fn read(path: &Path) -> Result<(String, String, Option<&Path>), Error> {
    let is_stdin = path.as_os_str() == "-";
    let name = if is_stdin { "<stdin>".to_owned() } else { path.display().to_string() };
    let mut text = String::new();
    let limit = MAX_BYTES + 1;
    if is_stdin {
        io::stdin().take(limit).read_to_string(&mut text).at("read", path)?;
    } else {
        File::open(path)
            .at("open", path)?
            .take(limit)
            .read_to_string(&mut text)
            .at("read", path)?;
    }
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::TooLarge { path: path.to_owned(), limit: MAX_BYTES });
    }
    Ok((name, text, path.parent().filter(|_| !is_stdin)))
}

fn print(finding: &Finding, format: Format) -> io::Result<()> {
    let Finding { place, severity, message, hint } = finding;
    let (name, color) = match severity {
        Severity::Error => ("error", AnsiColor::Red),
        Severity::Warning => ("warning", AnsiColor::Yellow),
        Severity::Note => ("note", AnsiColor::Cyan),
    };
    if format == Format::Json {
        let (line, column) = place.position.map(|at| (at.line, at.column)).unzip();
        let json = serde_json::json!({
            "file": place.file, "line": line, "column": column, "severity": name, "message": message, "hint": hint,
        });
        return writeln!(io::stdout(), "{json}");
    }
    let style = Style::new().bold().fg_color(Some(color.into()));
    let mut out = anstream::stdout();
    writeln!(out, "{place}: {style}{name}{style:#}: {message}")?;
    match hint {
        Some(hint) => writeln!(out, "    {hint}"),
        None => Ok(()),
    }
}
