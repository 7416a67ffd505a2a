//! State shared by all commands: output, error format and hook directories.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, IsTerminal, Read, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::directories::ConfiguredDirs;
use oci_hooks::hooks::{Consumer, HookError, LoadOptions, LoadProblem};
use oci_hooks::json::JsonDocument;
use oci_hooks_cli::check::{self, CheckSummary, HostCheck};
use oci_hooks_cli::context as program;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::style::{self, Paint};
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_files::fs::{FileKind, PathContext, ReadError};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs};
use serde::Serialize;

use crate::directories::HookDirectories;
use crate::doctor::native::podman_in_path;
use crate::error::{Diagnostic, HooksCommandError};
use crate::global::{ErrorFormat, GlobalArgs, OutputFormat};

/// Returns the ID of the container if a text is the output of `podman inspect`, `docker inspect` or `crictl inspect`.
fn inspected_container(text: &[u8]) -> Option<String> {
    // Without this check, configurations would be parsed twice.
    let text = str::from_utf8(text).ok()?;
    if !text.contains("\"HostConfig\"") && !text.contains("\"runtimeSpec\"") {
        return None;
    }
    let document = JsonDocument::parse(text.as_bytes()).ok()?;
    let root = document.root();
    let root = root.elements().next().unwrap_or(root);
    let id = match root.get("HostConfig") {
        Some(_) => root.get("Id"),
        None => root.get("info")?.get("runtimeSpec").and(root.get("status")?.get("id")),
    };
    // The hint puts the ID into a command without quotes, so only letters and digits are accepted.
    id?.as_str().filter(|id| id.chars().all(char::is_alphanumeric)).map(Cow::into_owned)
}

/// Size limit of a configuration.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Above this number, hook files with missing programs are counted instead of listed: usually, a whole package of
/// hook programs is not installed.
const MAX_MISSING_NAMED: usize = 3;

/// Global options, output streams and hook directories of a command.
pub struct CommandContext {
    pub consumer: Consumer,
    /// Set if `--as` names the consumer.
    pub is_consumer_given: bool,
    pub format: Option<OutputFormat>,
    pub verbose: bool,
    pub paint: Paint,
    hooks_dirs: Vec<PathBuf>,
    error_format: ErrorFormat,
    /// Hints already printed: each hint is printed once.
    hints: RefCell<HashSet<String>>,
    output: program::CliContext,
}

impl CommandContext {
    pub fn new(global: &GlobalArgs) -> Self {
        let output =
            program::CliContext::new(global.color, global.format == Some(OutputFormat::Json));
        CommandContext {
            consumer: global.consumer.clone().unwrap_or(PODMAN),
            is_consumer_given: global.consumer.is_some(),
            format: global.format,
            verbose: global.verbose,
            paint: output.paint,
            hooks_dirs: global.hooks_dir.clone(),
            error_format: global.error_format,
            hints: RefCell::default(),
            output,
        }
    }

    /// Uses the rules of the installed podman, if there is one, unless `--as` names a consumer.
    pub fn use_installed(&mut self) {
        if self.is_consumer_given {
            return;
        }
        match podman_in_path() {
            None => {}
            Some(Ok(consumer)) => {
                if self.verbose && consumer != PODMAN {
                    self.note(&format!(
                        "using the rules of {}, the version that `podman --version` prints",
                        consumer.name
                    ));
                }
                self.consumer = consumer;
            }
            Some(Err(reason)) => {
                let message = format!(
                    "`podman --version` gives no version: {reason}; the newest podman is assumed"
                );
                let warning = Diagnostic::new("podman-version", None, message);
                self.warn(&warning.with_hint("name the version with --as".to_owned()));
            }
        }
    }

    /// Returns whether output is machine-readable.
    pub fn is_json(&self) -> bool {
        self.output.is_json()
    }

    /// Returns whether `--hooks-dir` names the directories.
    pub fn has_hooks_dirs(&self) -> bool {
        !self.hooks_dirs.is_empty()
    }

    /// Returns the directories of `--hooks-dir`, or else those that the consumer is configured to read.
    pub fn directories(&self) -> Result<HookDirectories, HooksCommandError> {
        self.directories_as(&self.consumer)
    }

    /// Returns the directories of `--hooks-dir`, or else those that another consumer is configured
    /// to read.
    pub fn directories_as(
        &self,
        consumer: &Consumer,
    ) -> Result<HookDirectories, HooksCommandError> {
        if self.hooks_dirs.is_empty() {
            HookDirectories::read_configured(consumer)
        } else {
            Ok(HookDirectories::from_dirs(&self.hooks_dirs))
        }
    }

    /// Returns the directories of `--hooks-dir`, or else `configured`.
    pub fn directories_or(&self, configured: ConfiguredDirs) -> HookDirectories {
        match self.hooks_dirs.as_slice() {
            [] => HookDirectories::of_configured(configured, &self.consumer),
            dirs => HookDirectories::from_dirs(dirs),
        }
    }

    /// Returns the load options for directories.
    pub fn load_options(&self, directories: &HookDirectories) -> LoadOptions {
        let mut options = LoadOptions::for_consumer(&self.consumer);
        options.dirs.clone_from(&directories.dirs);
        options
    }

    /// Warns of hook files that are skipped.
    pub fn warn_of_problems(&self, problems: &[LoadProblem]) {
        let missing =
            |problem: &&LoadProblem| matches!(problem.source, HookError::PathMissing { .. });
        let many = problems.iter().filter(missing).count();
        let in_short =
            many > MAX_MISSING_NAMED && !self.verbose && self.error_format == ErrorFormat::Human;
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
            self.warn(&Diagnostic::new("missing-dir", Some(dir), "directory does not exist"));
        }
    }

    /// Reads a configuration from a file, or from standard input for `-`. Rejects the output of an engine's
    /// `inspect`.
    pub fn read_config(&self, path: &Path) -> Result<Vec<u8>, HooksCommandError> {
        let text = self.read_input(path, "a configuration")?;
        let Some(id) = inspected_container(&text) else { return Ok(text) };
        let input = if path == OsStr::new("-") { Path::new("standard input") } else { path };
        Err(HooksCommandError::Usage {
            message: format!(
                "{} is the output of an engine's `inspect`, not a config.json",
                input.display()
            ),
            hint: Some(format!("pass the container by its name or ID: `oci-hooks explain {id}`")),
        })
    }

    /// Reads a hook file, or standard input for `-`.
    pub fn read_hook(&self, path: &Path) -> Result<Vec<u8>, HooksCommandError> {
        self.read_input(path, "a hook file")
    }

    fn read_input(&self, path: &Path, what: &str) -> Result<Vec<u8>, HooksCommandError> {
        if path == OsStr::new("-") {
            if io::stdin().is_terminal() {
                self.note(&format!("reading {what} from the terminal: press Ctrl-D to end"));
            }
            return read_limited(io::stdin().lock(), Path::new("standard input"));
        }
        read_limited(open_input(path)?, path)
    }

    /// Prints the checks of `doctor`, and returns the exit status.
    pub fn report(
        &mut self,
        checks: &[HostCheck],
        outcome: CheckSummary,
    ) -> Result<CliExit, HooksCommandError> {
        Ok(check::report(checks, outcome, &mut self.output)?)
    }

    /// Writes bytes to standard output, which is buffered.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), HooksCommandError> {
        Ok(self.output.write(bytes)?)
    }

    /// Writes a line to standard output.
    pub fn line(&mut self, line: impl AsRef<str>) -> Result<(), HooksCommandError> {
        Ok(self.output.line(line)?)
    }

    /// Writes a line to standard output. On a terminal, it is wrapped, and continuation lines are indented.
    pub fn write_hanging_line(
        &mut self,
        line: impl AsRef<str>,
        indent: usize,
    ) -> Result<(), HooksCommandError> {
        Ok(self.output.write_hanging_line(line, indent)?)
    }

    /// Writes a JSON document to standard output.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), HooksCommandError> {
        Ok(self.output.json(value)?)
    }

    pub fn flush(&mut self) -> Result<(), HooksCommandError> {
        Ok(self.output.flush()?)
    }

    /// Prints a warning on standard error.
    pub fn warn(&self, diagnostic: &Diagnostic) {
        self.print(style::WARNING, "warning", diagnostic);
    }

    /// Prints a note on standard error, unless errors are printed in JSON.
    pub fn note(&self, text: &str) {
        if self.error_format == ErrorFormat::Human {
            self.output.note(&escape_control(text.as_bytes()));
        }
    }

    pub fn show_error(&self, error: &HooksCommandError) {
        self.print(style::BAD, "error", &error.diagnostic());
    }

    /// Prints all errors but the last, and returns the last.
    pub fn fail_with(
        &mut self,
        mut errors: Vec<HooksCommandError>,
    ) -> Result<(), HooksCommandError> {
        // The output is printed first.
        self.flush()?;
        let last = errors.pop();
        for error in &errors {
            self.show_error(error);
        }
        last.map_or(Ok(()), Err)
    }

    fn print(&self, style: anstyle::Style, level: &str, diagnostic: &Diagnostic) {
        if self.error_format == ErrorFormat::Json {
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

/// Returns the path of `config.json` in a bundle directory, or `path` itself for a file or `-`.
pub fn config_path(path: &Path) -> PathBuf {
    if path != OsStr::new("-") && path.is_dir() {
        path.join("config.json")
    } else {
        path.to_owned()
    }
}

/// Returns the file name of an input; `None` for standard input, and for a descriptor such as `/dev/fd/63`, which a
/// shell passes for `<(command)`.
pub fn input_name(path: &Path) -> Option<&OsStr> {
    let is_of_process =
        path.starts_with("/proc") && path.parent().is_some_and(|dir| dir.ends_with("fd"));
    let is_descriptor = ["-", "/dev/stdin"].iter().any(|name| path == Path::new(name))
        || path.starts_with("/dev/fd")
        || is_of_process;
    path.file_name().filter(|_| !is_descriptor)
}

/// Opens a file for reading. A pipe such as `/dev/fd/63`, which a shell passes for `<(command)`, is accepted, and a FIFO
/// in a directory is an error: its writer may never come.
pub fn open_input(path: &Path) -> Result<fs::File, HooksCommandError> {
    let mut options = fs::OpenOptions::new();
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = options.read(true).custom_flags(flags).open(path).with_path("open", path)?;
    let kind = file.metadata().with_path("read the status of", path)?.file_type();
    if kind.is_fifo() && !is_pipe(&file) {
        let error = ReadError::NotAFile { path: path.to_owned(), kind: FileKind::Fifo };
        let hint = "to read it, pass - and redirect standard input".to_owned();
        return Err(HooksCommandError::Hinted { error: Box::new(error.into()), hint });
    }
    let flags = fcntl_getfl(&file).with_path("open", path)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK).with_path("open", path)?;
    Ok(file)
}

/// Returns whether a file is a pipe without a name in a directory.
pub fn is_pipe(file: &fs::File) -> bool {
    // PIPEFS_MAGIC, the file system of pipes.
    fstatfs(file).is_ok_and(|found| found.f_type == 0x5049_5045)
}

/// Reads the whole input. An input larger than [`MAX_CONFIG_BYTES`] is an error.
pub fn read_limited(from: impl Read, path: &Path) -> Result<Vec<u8>, HooksCommandError> {
    let mut text = Vec::new();
    from.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut text).with_path("read", path)?;
    if text.len() as u64 > MAX_CONFIG_BYTES {
        return Err(HooksCommandError::TooLarge {
            path: path.to_owned(),
            limit_bytes: MAX_CONFIG_BYTES,
        });
    }
    Ok(text)
}

#[test]
fn descriptors_have_no_file_name() {
    for path in ["-", "/dev/stdin", "/dev/fd/63", "/proc/self/fd/0"] {
        assert_eq!(input_name(Path::new(path)), None, "{path}");
    }
    for path in ["a.json", "-/a.json", "./-", "/dev/shm/a.json"] {
        assert_eq!(input_name(Path::new(path)), Path::new(path).file_name(), "{path}");
    }
}
