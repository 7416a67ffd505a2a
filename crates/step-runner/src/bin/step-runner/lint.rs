//! `step-runner lint`.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::{PathContext as _, PathError, ReadError, read_bounded};
use step_runner::document::{LintFinding, LintSeverity, MAX_BYTES, STEP_FILE_NAMES, lint};
use walkdir::{DirEntry, WalkDir};

use crate::error::StepRunnerError;
use crate::report;

/// Check step files for mistakes
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  step-runner lint build/step.yml          One file
  step-runner lint .                       All step.yml and func.yml in a directory tree
  step-runner lint --format json . | jq .  Machine-readable findings

Exit status is 0 without errors and warnings (notes are allowed), 1 with any, 2 on bad usage.")]
pub struct LintArgs {
    /// Step files, directories with step files, or - for standard input
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Output format of findings on standard output
    #[arg(long, value_enum, default_value_t = FindingFormat::Text, value_name = "FORMAT")]
    format: FindingFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FindingFormat {
    /// Human-readable, one line per finding
    Text,
    /// Machine-readable, one JSON object per line
    Json,
}

pub fn run(args: &LintArgs) -> Result<CliExit, StepRunnerError> {
    let mut files = Vec::new();
    let mut is_bad = false;
    for path in &args.paths {
        let before = files.len();
        find(path, &mut files)?;
        if files.len() == before {
            let names = STEP_FILE_NAMES.join(" or ");
            report::error(&format!("no step files in {}: expected {names}", path.display()));
            is_bad = true;
        }
    }
    for file in &files {
        let (name, text, dir) = read(file)?;
        let findings = lint(&name, &text, dir);
        is_bad |= findings.iter().any(|finding| finding.severity != LintSeverity::Note);
        for finding in &findings {
            print(finding, args.format).map_err(OutputError::from)?;
        }
    }
    Ok(if is_bad { CliExit::Findings } else { CliExit::Done })
}

/// Collects the step files of a path: the file itself, or the step files in a directory tree without hidden
/// directories.
fn find(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), StepRunnerError> {
    if path.as_os_str() == "-" {
        files.push(path.to_owned());
        return Ok(());
    }
    let is_hidden = |entry: &DirEntry| entry.file_name().as_encoded_bytes().starts_with(b".");
    let tree = WalkDir::new(path).sort_by_file_name().into_iter();
    for entry in tree.filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry)) {
        let entry = entry.map_err(|error| {
            let at = error.path().unwrap_or(path).to_owned();
            let source = error.into_io_error().unwrap_or_else(|| rustix::io::Errno::LOOP.into());
            PathError { action: "read", path: at, source }
        })?;
        let is_named = entry.depth() == 0 && !path.is_dir();
        let is_step_file = STEP_FILE_NAMES.iter().any(|name| entry.file_name() == *name);
        if is_named || entry.depth() > 0 && is_step_file && !entry.file_type().is_dir() {
            files.push(entry.into_path());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<(String, String, Option<&Path>), StepRunnerError> {
    let is_stdin = path.as_os_str() == "-";
    let name = if is_stdin { "<stdin>".to_owned() } else { path.display().to_string() };
    let mut text = String::new();
    if is_stdin {
        io::stdin().take(MAX_BYTES + 1).read_to_string(&mut text).with_path("read", path)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(StepRunnerError::TooLarge { path: path.to_owned(), limit: MAX_BYTES });
        }
    } else {
        let bytes = read_bounded(path, MAX_BYTES).map_err(|error| match error {
            ReadError::TooLarge { path, limit_bytes: limit, .. } => {
                StepRunnerError::TooLarge { path, limit }
            }
            error => StepRunnerError::Read(error),
        })?;
        text = String::from_utf8(bytes).map_err(|_| not_text_error()).with_path("read", path)?;
    }
    Ok((name, text, path.parent().filter(|_| !is_stdin)))
}

fn not_text_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8")
}

fn print(finding: &LintFinding, format: FindingFormat) -> io::Result<()> {
    let LintFinding { location, severity, message, hint, .. } = finding;
    let (name, color) = match severity {
        LintSeverity::Error => ("error", AnsiColor::Red),
        LintSeverity::Warning => ("warning", AnsiColor::Yellow),
        LintSeverity::Note => ("note", AnsiColor::Cyan),
    };
    if format == FindingFormat::Json {
        let (line, column) = location.position.map(|at| (at.line, at.column)).unzip();
        let json = serde_json::json!({
            "file": location.file, "line": line, "column": column, "severity": name, "message": message, "hint": hint,
        });
        return writeln!(io::stdout(), "{json}");
    }
    let style = Style::new().bold().fg_color(Some(color.into()));
    let mut out = anstream::stdout();
    writeln!(out, "{location}: {style}{name}{style:#}: {message}")?;
    match hint {
        Some(hint) => writeln!(out, "    {hint}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directory_is_linted_as_its_sorted_visible_step_files() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        for name in ["b", "a/x", ".git", "step.yml"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        for name in
            ["b/step.yml", "a/x/func.yml", "a/other.yml", ".git/step.yml", "step.yml/step.yml"]
        {
            fs::write(top.join(name), "").unwrap();
        }
        symlink("..", top.join("a/loop")).unwrap();
        symlink("top", dir.path().join("link")).unwrap();
        for named in ["top", "link"] {
            let named = dir.path().join(named);
            let mut files = Vec::new();
            find(&named, &mut files).unwrap();
            let found = ["a/x/func.yml", "b/step.yml", "step.yml/step.yml"];
            assert_eq!(files, found.map(|name| named.join(name)));
        }
    }

    #[test]
    fn named_file_is_linted_whatever_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("other.yml");
        fs::write(&file, "").unwrap();
        let mut files = Vec::new();
        find(&file, &mut files).unwrap();
        find(Path::new("-"), &mut files).unwrap();
        assert_eq!(files, [file, "-".into()]);
        let error = find(&dir.path().join("none"), &mut files).unwrap_err();
        let message = oci_hooks_files::error::chain(&error);
        let expected = format!("cannot read {}/none: No such file", dir.path().display());
        assert!(message.starts_with(&expected), "{message}");
    }
}
