//! The calls of a played runner.

use std::path::PathBuf;
use std::process::Command;

use oci_hooks::container_hook::engine::JobSystem;
use oci_hooks::program::programs::this_program;
use oci_hooks::sys::fs::read_bounded;
use serde_json::{Value, json};

use super::call::{Ended, WhenToldToEnd, call};
use super::job_log::JobLog;
use super::play::TryError;
use super::runner::Runner;
use crate::signals::Pending;

/// The file of answers, below the runner's directory.
const ANSWER: &str = "_work/_temp/_runner_hook_responses/try.json";

/// The command that carries out requests for a job without an image.
const TRY_REQUEST: &str = "try-request";

/// More than any answer of ours has.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// What calls of this program have in common.
pub struct Calls<'a> {
    /// The settings file that the command line names.
    pub config: Option<PathBuf>,
    pub signals: &'a mut Pending,
    /// What the job containers have.
    pub system: JobSystem,
}

impl Calls<'_> {
    /// Makes a call with a request, as the runner does.
    pub fn request(
        &mut self,
        runner: &Runner,
        command: &str,
        args: &Value,
        state: &Value,
        when: WhenToldToEnd,
        log: &mut JobLog<'_>,
    ) -> Result<Ended, TryError> {
        let (program, request) = self.prepared(runner, command, args, state)?;
        Ok(call(program, request.as_bytes(), when, self.signals, log)?)
    }

    /// Returns the program of a call, and what it reads.
    pub fn prepared(
        &self,
        runner: &Runner,
        command: &str,
        args: &Value,
        state: &Value,
    ) -> Result<(Command, String), TryError> {
        let response = runner.write(ANSWER, b"")?;
        let request =
            json!({"command": command, "responseFile": response, "args": args, "state": state});
        let mut program = self.this_program()?;
        if self.system == JobSystem::Host && command != "run_script_step" {
            program.arg(TRY_REQUEST);
        }
        program.env_clear().envs(runner.environment());
        Ok((program, format!("{request}\n")))
    }

    /// Returns a call of this program with the same settings.
    pub fn this_program(&self) -> Result<Command, TryError> {
        let mut command = Command::new(this_program()?);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        Ok(command)
    }
}

/// Returns the last answer that a runner got.
pub fn answer(runner: &Runner) -> Result<Value, TryError> {
    let answer = read_bounded(&runner.directory.join(ANSWER), MAX_ANSWER_BYTES)?;
    Ok(serde_json::from_slice(&answer)?)
}
