//! What all commands share: where output goes, and the hook directories.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, IsTerminal, Read, Write as _};
use std::path::{Path, PathBuf};

use oci_hooks::hooks::{Consumer, HookError, LoadOptions, Problem};
use oci_hooks::program::check::{self, Check, Outcome};
use oci_hooks::program::context as program;
use oci_hooks::program::exit::Exit as ProgramExit;
use oci_hooks::program::style::{self, Paint};
use oci_hooks::sys::fs::PathContext;
use serde::Serialize;

use crate::Exit;
use crate::directories::Directories;
use crate::error::{Diagnostic, Error};
use crate::global::{Format, GlobalArgs, OutputFormat};

/// Size limit of a configuration.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Above this number, hook files with missing programs are counted instead of listed: a whole package of
/// hooks is not installed.
const MAX_MISSING_NAMED: usize = 3;

/// Global options, output streams and hook directories of a command.
pub struct Context {
    pub consumer: Consumer,
    pub format: Option<OutputFormat>,
    pub verbose: bool,
    pub paint: Paint,
    hooks_dirs: Vec<PathBuf>,
    error_format: Format,
    /// The hints that were printed: what is said of many files is said once.
    hints: RefCell<HashSet<String>>,
    output: program::Context,
}

impl Context {
    pub fn new(global: &GlobalArgs) -> Self {
        let output = program::Context::new(global.color, global.format == Some(OutputFormat::Json));
        Context {
            consumer: global.consumer.clone(),
            format: global.format,
            verbose: global.verbose,
            paint: output.paint,
            hooks_dirs: global.hooks_dir.clone(),
            error_format: global.error_format,
            hints: RefCell::default(),
            output,
        }
    }

    /// Returns whether output is machine-readable.
    pub fn is_json(&self) -> bool {
        self.output.is_json()
    }

    /// Returns the directories of `--hooks-dir`, or else those that the consumer is configured to read.
    pub fn directories(&self) -> Result<Directories, Error> {
        self.directories_as(&self.consumer)
    }

    /// Returns the directories for another consumer.
    pub fn directories_as(&self, consumer: &Consumer) -> Result<Directories, Error> {
        if self.hooks_dirs.is_empty() {
            Directories::configured(consumer)
        } else {
            Ok(Directories::named(&self.hooks_dirs))
        }
    }

    /// Returns what the consumer loads from directories.
    pub fn load_options(&self, directories: &Directories) -> LoadOptions {
        let mut options = LoadOptions::for_consumer(&self.consumer);
        options.dirs.clone_from(&directories.dirs);
        options
    }

    /// Warns of hook files that are skipped.
    pub fn warn_of_problems(&self, problems: &[Problem]) {
        let missing = |problem: &&Problem| matches!(problem.source, HookError::PathMissing { .. });
        let many = problems.iter().filter(missing).count();
        let in_short =
            many > MAX_MISSING_NAMED && !self.verbose && self.error_format == Format::Human;
        for problem in problems.iter().filter(|problem| !(in_short && missing(problem))) {
            self.warn(&Diagnostic::of_problem(problem));
        }
        if in_short {
            self.note(&format!(
                "{many} hook files are skipped: their programs do not exist (--verbose lists them)"
            ));
        }
    }

    /// Warns of missing directories of `--hooks-dir`; the consumer's own need not exist.
    pub fn warn_of_missing_dirs(&self, missing: &[PathBuf]) {
        for dir in missing.iter().filter(|dir| self.hooks_dirs.contains(dir)) {
            self.warn(&Diagnostic::new("missing-dir", dir, "directory does not exist"));
        }
    }

    /// Reads a configuration: a file, a bundle, or standard input for `-`.
    pub fn read_config(&self, path: &Path) -> Result<Vec<u8>, Error> {
        self.read_input(path, "a configuration")
    }

    /// Reads a hook file, or standard input for `-`.
    pub fn read_hook(&self, path: &Path) -> Result<Vec<u8>, Error> {
        self.read_input(path, "a hook file")
    }

    fn read_input(&self, path: &Path, what: &str) -> Result<Vec<u8>, Error> {
        if path == OsStr::new("-") {
            if io::stdin().is_terminal() {
                self.note(&format!("reading {what} from the terminal: press Ctrl-D to end"));
            }
            return read_limited(io::stdin().lock(), Path::new("standard input"));
        }
        let file = fs::File::open(path).at("open", path)?;
        read_limited(file, path)
    }

    /// Prints the findings of `doctor`, and returns whether nothing failed.
    pub fn report(&mut self, checks: &[Check], outcome: Outcome) -> Result<Exit, Error> {
        let exit = check::report(checks, outcome, &mut self.output)?;
        Ok(if exit == ProgramExit::Done { Exit::Yes } else { Exit::No })
    }

    /// Writes bytes to standard output, which is buffered.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
        Ok(self.output.write(bytes)?)
    }

    /// Writes a line to standard output.
    pub fn line(&mut self, line: impl AsRef<str>) -> Result<(), Error> {
        Ok(self.output.line(line)?)
    }

    /// Writes a line to standard output. On a terminal what does not fit goes to lines that begin with blanks.
    pub fn hanging(&mut self, line: impl AsRef<str>, indent: usize) -> Result<(), Error> {
        Ok(self.output.hanging(line, indent)?)
    }

    /// Writes a JSON document to standard output.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Error> {
        Ok(self.output.json(value)?)
    }

    pub fn flush(&mut self) -> Result<(), Error> {
        Ok(self.output.flush()?)
    }

    /// Prints a warning on standard error.
    pub fn warn(&self, diagnostic: &Diagnostic) {
        self.print(style::WARNING, "warning", diagnostic);
    }

    /// Prints a note on standard error, unless that is machine-readable.
    pub fn note(&self, text: &str) {
        if self.error_format == Format::Human {
            self.output.note(text);
        }
    }

    pub fn show_error(&self, error: &Error) {
        self.print(style::BAD, "error", &error.diagnostic());
    }

    fn print(&self, style: anstyle::Style, level: &str, diagnostic: &Diagnostic) {
        if self.error_format == Format::Json {
            return self.output.error_line(&diagnostic.to_json(level));
        }
        let level = self.output.error_paint.paint(style, format_args!("{level}:"));
        self.output.error_line(&format!("{level} {diagnostic}"));
        let is_new = |hint: &&String| self.hints.borrow_mut().insert((*hint).clone());
        self.output.hint(diagnostic.hint.as_ref().filter(is_new).map(String::as_str));
    }

    /// Forwards the output of another program to standard error.
    pub fn relay(&self, bytes: &[u8]) {
        let _ = io::stderr().lock().write_all(bytes);
    }
}

/// Returns the configuration of a bundle, or the path itself.
pub fn config_path(path: &Path) -> PathBuf {
    if path != OsStr::new("-") && path.is_dir() {
        path.join("config.json")
    } else {
        path.to_owned()
    }
}

/// Reads all, up to [`MAX_CONFIG_BYTES`].
pub fn read_limited(from: impl Read, path: &Path) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    from.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut text).at("read", path)?;
    if text.len() as u64 > MAX_CONFIG_BYTES {
        return Err(Error::TooLarge { path: path.to_owned(), limit_bytes: MAX_CONFIG_BYTES });
    }
    Ok(text)
}
