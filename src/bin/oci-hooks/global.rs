//! Options that every command accepts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use oci_hooks::hooks::Consumer;
use oci_hooks_cli::context::{ColorMode, log_level};
use oci_hooks_cli::trace::LevelFilter;

/// Options that every command accepts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Read hook files from DIR instead of the directories that the consumer is configured to read (can be
    /// repeated, in order of increasing precedence)
    #[arg(long, global = true, value_name = "DIR")]
    pub hooks_dir: Vec<PathBuf>,

    /// Read, match and inject as CONSUMER does [default: the version of the podman in PATH, or else podman 6; for
    /// the name of a container, its engine]
    #[arg(long = "as", global = true, value_name = "CONSUMER", value_parser = consumer_parser())]
    pub consumer: Option<Consumer>,

    /// Format of results on standard output [default: human; for monitor, json]
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    pub format: Option<OutputFormat>,

    /// Format of errors and warnings on standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub error_format: ErrorFormat,

    /// Coloured output
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub color: ColorMode,

    /// Print more detail
    #[arg(long, short, global = true)]
    pub verbose: bool,

    /// Log mounts, programs, requests and decisions to standard error, from this level (RUST_LOG selects modules)
    #[arg(long, global = true, value_name = "LEVEL", value_parser = log_level())]
    pub log_level: Option<LevelFilter>,
}

/// Format of results on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Human-readable
    Human,
    /// Machine-readable, with the keys described in oci-hooks(1)
    Json,
    /// SARIF 2.1.0, for code scanning (lint only)
    Sarif,
    /// GitHub Actions annotations (lint only)
    Github,
    /// GitLab Code Quality report (lint only)
    Gitlab,
}

/// Format of errors and warnings on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ErrorFormat {
    /// Human-readable
    #[default]
    Human,
    /// Machine-readable, with the keys described in oci-hooks(1)
    Json,
}

pub fn consumer_parser() -> impl clap::builder::TypedValueParser<Value = Consumer> {
    use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

    let names = Consumer::ALL.map(|c| PossibleValue::new(c.name).aliases(c.alias).help(c.about));
    PossibleValuesParser::new(names)
        .map(|name| Consumer::from_name(&name).expect("the parser knows only these names"))
}
