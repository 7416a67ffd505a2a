//! What the commands of a program share: where output goes, and the settings file that was named.

use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use super::exit::Failure;
use super::style::{self, Paint};
use super::terminal::{self, hang};
use super::trace::LevelFilter;
use crate::sys::error::chain;

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Parses `--log-level`.
pub fn log_level() -> impl TypedValueParser<Value = LevelFilter> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    PossibleValuesParser::new(levels).try_map(|level| level.parse::<LevelFilter>())
}

/// Standard output cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Returns whether whoever read the output has closed it.
    pub fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// The environment of a command.
pub struct Context {
    /// Styles text on standard output.
    pub paint: Paint,
    /// Styles text on standard error.
    pub error_paint: Paint,
    /// The settings file that the command line names, if it names one.
    pub config: Option<PathBuf>,
    is_json: bool,
    /// The width of standard output, if it is a terminal.
    width: Option<usize>,
    out: BufWriter<io::Stdout>,
}

impl Context {
    /// Returns the environment of a command with output in colour, and as JSON, if that was asked for.
    pub fn new(color: Color, is_json: bool) -> Self {
        let enabled = |auto| match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => auto != ColorChoice::Never,
        };
        Context {
            paint: Paint { enabled: enabled(AutoStream::choice(&io::stdout())) },
            error_paint: Paint { enabled: enabled(AutoStream::choice(&io::stderr())) },
            config: None,
            is_json,
            width: terminal::width(),
            out: BufWriter::new(io::stdout()),
        }
    }

    /// Returns the same with a settings file that the command line names.
    pub fn with_config(self, config: Option<PathBuf>) -> Self {
        Context { config, ..self }
    }

    /// Returns whether output is for programs.
    pub fn is_json(&self) -> bool {
        self.is_json
    }

    /// Writes to standard output, which is buffered.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), OutputError> {
        Ok(self.out.write_all(bytes.as_ref())?)
    }

    /// Writes a line to standard output.
    pub fn line(&mut self, line: impl AsRef<str>) -> Result<(), OutputError> {
        self.write(line.as_ref())?;
        self.write("\n")
    }

    /// Writes a line to standard output. On a terminal what does not fit goes to lines that begin with blanks.
    pub fn hanging(&mut self, line: impl AsRef<str>, indent: usize) -> Result<(), OutputError> {
        match self.width {
            Some(width) => self.line(hang(line.as_ref(), width, indent)),
            None => self.line(line),
        }
    }

    /// Writes a JSON document to standard output.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), OutputError> {
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
        self.line(text)
    }

    /// Writes what is still in memory to standard output.
    pub fn flush(&mut self) -> Result<(), OutputError> {
        Ok(self.out.flush()?)
    }

    /// Writes a note to standard error.
    pub fn note(&self, text: &str) {
        self.error_line(&format!("{} {text}", self.error_paint.paint(style::HINT, "note:")));
    }

    /// Writes a warning to standard error.
    pub fn warning(&self, text: &str) {
        self.error_line(&format!("{} {text}", self.error_paint.paint(style::WARNING, "warning:")));
    }

    /// Writes an error with its causes to standard error, and what to do about it.
    pub fn show_error(&self, error: &(impl Failure + 'static)) {
        let level = self.error_paint.paint(style::BAD, "error:");
        self.error_line(&format!("{level} {}", chain(error)));
        self.hint(error.hint().as_deref());
    }

    /// Writes what to do about an error or a warning to standard error, if there is anything to say.
    pub fn hint(&self, hint: Option<&str>) {
        if let Some(hint) = hint {
            self.error_line(&format!("  {} {hint}", self.error_paint.paint(style::HINT, "hint:")));
        }
    }

    /// Writes a line to standard error.
    pub fn error_line(&self, line: &str) {
        // If standard error is gone there is nobody to tell.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}
