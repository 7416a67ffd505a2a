//! `completions`: the scripts by which shells complete command lines.

use clap::{Args, Command};
use clap_complete::Shell;

use super::context::{Context, OutputError};

/// Print a shell completion script
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to generate completions for
    shell: Shell,
}

impl CompletionsArgs {
    /// Returns the script for a program with this command line.
    pub fn script(&self, mut program: Command) -> Vec<u8> {
        let mut script = Vec::new();
        let name = program.get_name().to_owned();
        clap_complete::generate(self.shell, &mut program, name, &mut script);
        script
    }

    /// Prints the script for a program with this command line.
    pub fn run(&self, program: Command, context: &mut Context) -> Result<(), OutputError> {
        context.write(self.script(program))
    }
}
