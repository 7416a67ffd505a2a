//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use oci_hooks::hooks::Consumer;

use crate::error::Error;
use crate::{
    completions, disable, enable, explain, inject, install, lint, list, migrate, monitor, new,
    pattern, remove, run_hook, schema, show, validate,
};

const EXAMPLES: &str = "\
Examples:
  oci-hooks explain config.json          Why did my hook not run?
  oci-hooks inject config.json           The configuration as podman would make it
  oci-hooks lint                         Find mistakes before a container does
  oci-hooks monitor                      Follow changes of the directories

Exit status:
  0  yes: done, something matches, nothing to complain about
  1  no: nothing matches, there are findings
  2  could not tell: wrong usage, a file that cannot be read";

/// OCI hooks as podman and CRI-O configure them in hooks.d directories
#[derive(Debug, Parser)]
#[command(name = "oci-hooks", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Refuses the formats of findings where there are none.
    pub(crate) fn check_format(&self) -> Result<(), Error> {
        match (self.global.format, &self.command) {
            (Some(OutputFormat::Sarif | OutputFormat::Github), command)
                if !matches!(command, Command::Lint(_)) =>
            {
                Err(Error::Usage {
                    message: "only lint has the formats sarif and github".to_owned(),
                    hint: Some("use --format json".to_owned()),
                })
            }
            _ => Ok(()),
        }
    }
}

/// Options of all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Read hook files from DIR instead of the consumer's directories (can be repeated, in order of
    /// increasing precedence)
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) hooks_dir: Vec<PathBuf>,

    /// Read, match and inject as CONSUMER does
    #[arg(long = "as", global = true, value_name = "CONSUMER", default_value = "podman", value_parser = consumer_parser())]
    pub(crate) consumer: Consumer,

    /// Format of the output
    #[arg(long, global = true, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<OutputFormat>,

    /// Format of errors and warnings on standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) error_format: Format,

    /// Use colours
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: Color,

    /// Say more
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

/// How results are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people
    Human,
    /// For programs; described in oci-hooks(1)
    Json,
    /// SARIF 2.1.0, for code scanning (only lint)
    Sarif,
    /// Annotations of GitHub Actions (only lint)
    Github,
}

/// How something is said on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Human,
    /// For programs; described in oci-hooks(1)
    Json,
}

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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Inject(inject::InjectArgs),
    Explain(explain::ExplainArgs),
    Lint(lint::LintArgs),
    List(list::ListArgs),
    Show(show::ShowArgs),
    Validate(validate::ValidateArgs),
    Schema(schema::SchemaArgs),
    Pattern(pattern::PatternArgs),
    Migrate(migrate::MigrateArgs),
    New(new::NewArgs),
    Install(install::InstallArgs),
    Remove(remove::RemoveArgs),
    Disable(disable::DisableArgs),
    Enable(enable::EnableArgs),
    Monitor(monitor::MonitorArgs),
    RunHook(run_hook::RunHookArgs),
    Completions(completions::CompletionsArgs),
}

pub(crate) fn consumer_parser() -> impl clap::builder::TypedValueParser<Value = Consumer> {
    use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

    let names = Consumer::ALL.map(|c| PossibleValue::new(c.name).help(c.about));
    PossibleValuesParser::new(names)
        .map(|name| Consumer::from_name(&name).expect("the parser knows only these names"))
}
