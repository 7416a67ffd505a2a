//! State shared by the commands of a program: output streams, and the settings file given on the command line.

use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use oci_hooks_files::error::chain;
use serde::Serialize;

use super::exit::CliError;
use super::style::{self, Paint};
use super::terminal::{self, wrap_hanging};
use super::trace::LevelFilter;

/// Values of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorMode {
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

/// Error of writing to standard output.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Returns whether the reader of standard output closed it.
    pub fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Output streams and common options of a command.
pub struct CliContext {
    /// Styles text on standard output.
    pub paint: Paint,
    /// Styles text on standard error.
    pub error_paint: Paint,
    /// Settings file given by `--config`.
    pub config: Option<PathBuf>,
    is_json: bool,
    /// Columns of standard output, if it is a terminal.
    width: Option<usize>,
    out: BufWriter<io::Stdout>,
}

impl CliContext {
    /// Returns a context with these output options.
    pub fn new(color: ColorMode, is_json: bool) -> Self {
        let enabled = |auto| match color {
            ColorMode::Always => true,
            ColorMode::Never => false,
            ColorMode::Auto => auto != ColorChoice::Never,
        };
        CliContext {
            paint: Paint { enabled: enabled(AutoStream::choice(&io::stdout())) },
            error_paint: Paint { enabled: enabled(AutoStream::choice(&io::stderr())) },
            config: None,
            is_json,
            width: terminal::width(),
            out: BufWriter::new(io::stdout()),
        }
    }

    /// Sets the settings file given by `--config`.
    pub fn with_config(self, config: Option<PathBuf>) -> Self {
        CliContext { config, ..self }
    }

    /// Returns whether the output format is JSON.
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

    /// Writes a line to standard output. On a terminal, a long line is wrapped, and continuation lines are indented.
    pub fn write_hanging_line(
        &mut self,
        line: impl AsRef<str>,
        indent: usize,
    ) -> Result<(), OutputError> {
        match self.width {
            Some(width) => self.line(wrap_hanging(line.as_ref(), width, indent)),
            None => self.line(line),
        }
    }

    /// Writes a JSON document to standard output.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), OutputError> {
        let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
        self.line(text)
    }

    /// Flushes the buffer of standard output.
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

    /// Writes an error with its causes and its hint to standard error.
    pub fn show_error(&self, error: &(impl CliError + 'static)) {
        let level = self.error_paint.paint(style::BAD, "error:");
        self.error_line(&format!("{level} {}", chain(error)));
        self.hint(error.hint().as_deref());
    }

    /// Writes the hint of an error or a warning to standard error, if it has one.
    pub fn hint(&self, hint: Option<&str>) {
        if let Some(hint) = hint {
            self.error_line(&format!("  {} {hint}", self.error_paint.paint(style::HINT, "hint:")));
        }
    }

    /// Writes a line to standard error.
    pub fn error_line(&self, line: &str) {
        // If standard error is closed, the error cannot be reported.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}
