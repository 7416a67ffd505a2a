//! What commands for people share: the settings, and where output goes.

use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use oci_hooks::sys::error::chain;
use serde::Serialize;

use crate::cli::{Format, GlobalArgs};
use crate::error::Error;
use crate::settings::{self, Settings};
use crate::shared::read::{Loaded, SettingsError};
use crate::style::{self, Paint};

/// When colours are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The environment of a command.
pub(crate) struct Context {
    /// Colours on standard output.
    pub(crate) paint: Paint,
    config: Option<PathBuf>,
    format: Format,
    error_paint: Paint,
    out: BufWriter<io::Stdout>,
}

impl Context {
    pub(crate) fn new(global: &GlobalArgs) -> Self {
        let enabled = |auto| match global.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => auto != ColorChoice::Never,
        };
        Context {
            paint: Paint { enabled: enabled(AutoStream::choice(&io::stdout())) },
            config: global.config.clone(),
            format: global.format,
            error_paint: Paint { enabled: enabled(AutoStream::choice(&io::stderr())) },
            out: BufWriter::new(io::stdout()),
        }
    }

    /// Returns the settings that are in force.
    pub(crate) fn settings(&self) -> Result<Loaded<Settings>, SettingsError> {
        settings::load(self.config.as_deref())
    }

    /// Tells if output is for programs.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Writes to standard output.
    pub(crate) fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Error> {
        self.out.write_all(bytes.as_ref()).map_err(Error::Output)
    }

    /// Writes a line to standard output.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) -> Result<(), Error> {
        self.write(line.as_ref())?;
        self.write("\n")
    }

    /// Writes a JSON document to standard output.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(value).map_err(|e| Error::Output(e.into()))?;
        self.line(text)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(Error::Output)
    }

    /// Says on standard error what may help.
    pub(crate) fn note(&self, text: &str) {
        self.say(&format!("{} {text}", self.error_paint.paint(style::HINT, "note:")));
    }

    pub(crate) fn show_error(&self, error: &Error) {
        self.say(&format!("{} {}", self.error_paint.paint(style::BAD, "error:"), chain(error)));
        if let Some(hint) = error.hint() {
            self.say(&format!("  {} {hint}", self.error_paint.paint(style::HINT, "hint:")));
        }
    }

    fn say(&self, line: &str) {
        // If standard error is gone there is nobody to tell.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}
