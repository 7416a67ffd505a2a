//! Calls of the simulated runner.

use std::path::PathBuf;
use std::process::Command;

use container_hook::JobRootFs;
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_files::fs::read_bounded;
use oci_hooks_image::ImageReference;
use serde_json::{Value, json};

use super::call::{CallResult, OnTermination, call};
use super::job_log::JobLog;
use super::play::TryJobError;
use super::request::{self, ServiceArg};
use super::runner::SimulatedRunner;
use crate::signals::PendingSignals;

/// The response file, below the runner's directory.
const ANSWER: &str = "_work/_temp/_runner_hook_responses/try.json";

/// The command that carries out requests for a job without an image.
const TRY_REQUEST: &str = "try-request";

/// Maximum size of a response that is read; responses of the hook are smaller.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// The calls of simulated runners.
pub struct RunnerCalls<'a> {
    /// Settings file of the command line.
    pub config: Option<PathBuf>,
    pub signals: &'a mut PendingSignals,
    /// First signal that told this program to end.
    pub signal: Option<i32>,
    /// Root file system of the job containers.
    pub system: JobRootFs,
    pub log: JobLog<'a>,
}

impl RunnerCalls<'_> {
    /// Prepares a job, and the files of its step. Also returns the job's state for later calls, which is null if the
    /// job did not start.
    pub fn prepare_job(
        &mut self,
        runner: &SimulatedRunner,
        image: Option<&ImageReference>,
        services: &[ServiceArg],
    ) -> Result<(CallResult, Value), TryJobError> {
        let args = request::prepare(runner, image, services);
        let called = self.request(runner, "prepare_job", &args, &Value::Null)?;
        if !called.status.success() {
            return Ok((called, Value::Null));
        }
        for name in request::files() {
            runner.write(&name, b"")?;
        }
        Ok((called, answer(runner)?["state"].take()))
    }

    /// Makes a call with a request, like the runner. A signal to this program cancels the call,
    /// except for `cleanup_job`.
    pub fn request(
        &mut self,
        runner: &SimulatedRunner,
        command: &str,
        args: &Value,
        state: &Value,
    ) -> Result<CallResult, TryJobError> {
        let (program, request) = self.prepare_call(runner, command, args, state)?;
        let when = match command {
            "cleanup_job" => OnTermination::Continue,
            _ => OnTermination::Cancel,
        };
        let called = call(program, request.as_bytes(), when, self.signals, &mut self.log)?;
        self.signal = self.signal.or(called.signal);
        Ok(called)
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
        let mut program = Command::new(program_path()?);
        if let Some(config) = &self.config {
            program.arg("--config").arg(config);
        }
        if self.system == JobRootFs::Host && command != "run_script_step" {
            program.arg(TRY_REQUEST);
        }
        program.env_clear().envs(runner.environment());
        Ok((program, format!("{request}\n")))
    }
}

/// Returns the last response to a runner.
fn answer(runner: &SimulatedRunner) -> Result<Value, TryJobError> {
    let answer = read_bounded(&runner.directory.join(ANSWER), MAX_ANSWER_BYTES)?;
    Ok(serde_json::from_slice(&answer)?)
}
