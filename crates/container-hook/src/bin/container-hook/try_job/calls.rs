//! Calls of the simulated runner.

use std::path::PathBuf;
use std::process::Command;

use container_hook::JobRootFs;
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_files::fs::read_bounded;
use serde_json::{Value, json};

use super::call::{CallResult, OnTermination, call};
use super::job_log::JobLog;
use super::play::TryJobError;
use super::runner::SimulatedRunner;
use crate::signals::PendingSignals;

/// The response file, below the runner's directory.
const ANSWER: &str = "_work/_temp/_runner_hook_responses/try.json";

/// The command that carries out requests for a job without an image.
const TRY_REQUEST: &str = "try-request";

/// Larger than any response of the hook.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// Common parameters of the calls.
pub struct CallOptions<'a> {
    /// Settings file of the command line.
    pub config: Option<PathBuf>,
    pub signals: &'a mut PendingSignals,
    /// System of the job containers.
    pub system: JobRootFs,
}

impl CallOptions<'_> {
    /// Makes a call with a request, like the runner.
    pub fn request(
        &mut self,
        runner: &SimulatedRunner,
        command: &str,
        args: &Value,
        state: &Value,
        when: OnTermination,
        log: &mut JobLog<'_>,
    ) -> Result<CallResult, TryJobError> {
        let (program, request) = self.prepare_call(runner, command, args, state)?;
        Ok(call(program, request.as_bytes(), when, self.signals, log)?)
    }

    /// Returns the command and the input of a call.
    pub fn prepare_call(
        &self,
        runner: &SimulatedRunner,
        command: &str,
        args: &Value,
        state: &Value,
    ) -> Result<(Command, String), TryJobError> {
        let response = runner.write(ANSWER, b"")?;
        let request =
            json!({"command": command, "responseFile": response, "args": args, "state": state});
        let mut program = self.own_command()?;
        if self.system == JobRootFs::Host && command != "run_script_step" {
            program.arg(TRY_REQUEST);
        }
        program.env_clear().envs(runner.environment());
        Ok((program, format!("{request}\n")))
    }

    /// Returns a command that calls this program with the same settings.
    pub fn own_command(&self) -> Result<Command, TryJobError> {
        let mut command = Command::new(program_path()?);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        Ok(command)
    }
}

/// Returns the last response to a runner.
pub fn answer(runner: &SimulatedRunner) -> Result<Value, TryJobError> {
    let answer = read_bounded(&runner.directory.join(ANSWER), MAX_ANSWER_BYTES)?;
    Ok(serde_json::from_slice(&answer)?)
}
