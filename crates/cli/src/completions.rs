//! Completion of command lines by shells.
//!
//! A shell reads a short script once. The script calls the program with `OCI_HOOKS_COMPLETE` set, so names of hook
//! files, images, containers and instances are completed too.

use clap::{Args, Command};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};

use super::context::{CliContext, OutputError};

/// Environment variable that makes a program complete a command line instead of running it.
const VARIABLE: &str = "OCI_HOOKS_COMPLETE";

/// Print a shell completion script
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to generate completions for
    shell: Shell,
}

impl CompletionsArgs {
    /// Returns the script for a program with this command line.
    pub fn script(&self, program: &Command) -> Vec<u8> {
        let mut script = Vec::new();
        let (shell, name) = (self.shell.to_string(), program.get_name());
        let shells = Shells::builtins();
        let shell = shells.completer(&shell).expect("each shell of the command line has a script");
        shell
            .write_registration(VARIABLE, name, name, name, &mut script)
            .expect("memory can be written to");
        script
    }

    /// Prints the script for a program with this command line.
    pub fn run(&self, program: &Command, context: &mut CliContext) -> Result<(), OutputError> {
        context.write(self.script(program))
    }
}

/// Completes a command line and exits if `OCI_HOOKS_COMPLETE` is set; returns otherwise. Must be called before
/// the program reads or prints anything.
pub fn complete(program: fn() -> Command) {
    CompleteEnv::with_factory(program).var(VARIABLE).complete();
}

/// Converts names to completion candidates.
pub fn candidates(names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    names.into_iter().map(CompletionCandidate::new).collect()
}
