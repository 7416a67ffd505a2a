//! The command line.

use clap::{Parser, Subcommand};
use oci_hooks_cli::completions::CompletionsArgs;
use oci_hooks_cli::man::ManArgs;

use crate::error::HooksCommandError;
use crate::global::{GlobalArgs, OutputFormat};
use crate::{
    doctor, explain, inject, install, lint, list, migrate, monitor, new, pattern, remove, run_hook,
    schema, show, validate,
};

const EXAMPLES: &str = "\
Examples:
  oci-hooks explain NAME                 Why did my hook not run in this container?
  oci-hooks inject config.json           Print config.json as podman would write it
  oci-hooks doctor                       Which engines apply hook files here?
  oci-hooks lint                         Check hook files before a container starts
  oci-hooks monitor                      Watch hook directories for changes

Exit status:
  0    success: done, a hook matches, no findings
  1    no match, or findings
  2    error: bad usage or unreadable input
  141  standard output was closed early

First hook, why a hook does not run, hooks_dir, lint in CI, Docker, troubleshooting: see
man oci-hooks, and docs/hooks.md in /usr/share/doc/oci-hooks or in the repository.";

/// Explain, lint, inject and manage OCI hooks in hooks.d directories, as podman and CRI-O use them
#[derive(Debug, Parser)]
#[command(name = "oci-hooks", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: HooksCommand,
}

impl Cli {
    /// Rejects the formats of findings for commands other than `lint`.
    pub fn check_format(&self) -> Result<(), HooksCommandError> {
        match (self.global.format, &self.command) {
            (Some(OutputFormat::Sarif | OutputFormat::Github | OutputFormat::Gitlab), command)
                if !matches!(command, HooksCommand::Lint(_)) =>
            {
                Err(HooksCommandError::Usage {
                    message: "--format sarif, github and gitlab are only supported by lint"
                        .to_owned(),
                    hint: Some("use --format json".to_owned()),
                })
            }
            _ => Ok(()),
        }
    }
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  oci-hooks completions bash > /etc/bash_completion.d/oci-hooks
  oci-hooks completions fish > ~/.config/fish/completions/oci-hooks.fish";

#[derive(Debug, Subcommand)]
pub enum HooksCommand {
    Inject(inject::InjectArgs),
    Explain(explain::ExplainArgs),
    Doctor(doctor::EngineDoctorArgs),
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
    Disable(remove::DisableArgs),
    Enable(remove::EnableArgs),
    Monitor(monitor::MonitorArgs),
    RunHook(run_hook::RunHookArgs),
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    Man(ManArgs),
}

impl HooksCommand {
    /// Returns whether the command always follows the rules of a consumer, and so needs the version of podman. `explain`
    /// needs it only for a configuration: the engine of a container decides.
    pub fn has_consumer(&self) -> bool {
        !matches!(
            self,
            HooksCommand::Inject(_)
                | HooksCommand::Explain(_)
                | HooksCommand::Doctor(_)
                | HooksCommand::Schema(_)
                | HooksCommand::Pattern(_)
                | HooksCommand::Migrate(_)
                | HooksCommand::RunHook(_)
                | HooksCommand::Completions(_)
                | HooksCommand::Man(_)
        )
    }
}
