//! A job as a whole.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::super::Value;
use super::super::document::StepFile;
use super::super::log::Output;
use super::super::resolve::Resolver;
use super::super::wire::proto::{self, step_result::Status};
use super::cancel::{Cancel, Reason};
use super::command::Processes;
use super::error::{ExecError, LoadError, StepError};
use super::groups::Groups;
use super::run::{Call, Runner};
use super::scope::Scope;

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Job {
    /// The steps.
    pub steps: StepFile,
    /// Where commands run, and what relative references of the job's own steps are relative to. It
    /// exists.
    pub work_dir: PathBuf,
    /// The environment that steps start from.
    pub env: BTreeMap<String, String>,
    /// The variables of the CI job, `vars` in expressions.
    pub vars: BTreeMap<String, String>,
    /// Values for the inputs of the job's own steps.
    pub inputs: BTreeMap<String, Value>,
    /// A directory that exists and nobody else can read, for the files of the job.
    pub scratch: PathBuf,
    /// The time between `SIGTERM` and `SIGKILL`.
    pub grace: Duration,
    /// The time after a cancellation in which steps with `if: ${{ always() }}` may run.
    pub cleanup: Duration,
    /// How long it may run at most.
    pub timeout: Option<Duration>,
}

/// What became of a job.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended: success, failure or cancelled.
    pub status: Status,
    /// Why it failed; the exit code of a command, if one failed, is at its end. Empty after success.
    pub message: String,
    /// The code of the command that failed, 128 more than the signal that ended it; 1 if it was no
    /// command that failed, 0 after success.
    pub exit_code: i32,
    /// What became of each step.
    pub result: proto::StepResult,
}

impl Job {
    /// Checks that the job has the inputs it needs.
    pub fn check(&self) -> Result<(), StepError> {
        let known = &self.steps.spec.inputs;
        if let Some(name) = self.inputs.keys().find(|name| !known.contains_key(*name)) {
            return Err(StepError::Spec(LoadError::UnknownInput(name.clone())));
        }
        let is_missing =
            |name: &String| known[name].default.is_none() && !self.inputs.contains_key(name);
        match known.keys().find(|name| is_missing(name)) {
            Some(name) => Err(StepError::Spec(LoadError::MissingInput(name.clone()))),
            None => Ok(()),
        }
    }

    /// Runs the steps. `ended` gets the result of each as it ends, those within another before it,
    /// that of the job last.
    pub fn run(
        &self,
        resolver: &Resolver,
        output: &mut dyn Output,
        cancel: &Cancel,
        ended: &mut dyn FnMut(&proto::StepResult),
    ) -> Outcome {
        let groups = match Groups::new(&self.scratch) {
            Ok(groups) => groups,
            Err(error) => {
                let action = "cannot record process groups";
                return Outcome::failed(&ExecError::Follow { action, error }.into());
            }
        };
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let processes = Processes::new(groups, cancel, self.grace, deadline);
        let mut runner = Runner::new(self, resolver, output, ended, processes);
        let scope = Scope::new(&self.work_dir, &self.work_dir, &self.vars);
        let inputs = self.inputs.iter().map(|(name, value)| (name.clone(), value.clone().into()));
        let inputs = inputs.collect();
        let call = Call { step: proto::Step::default(), inputs, file: &self.steps };
        let (result, error) = runner.root(scope, call);
        runner.end();
        match error {
            None => {
                Outcome { status: Status::Success, message: String::new(), exit_code: 0, result }
            }
            Some(error) => {
                let outcome = Outcome { result, ..Outcome::failed(&error) };
                match cancel.reason() {
                    None => outcome,
                    Some(Reason::Asked) => Outcome { status: Status::Cancelled, ..outcome },
                    Some(Reason::Timeout) => {
                        let message =
                            format!("the job ran longer than it may: {}", outcome.message);
                        Outcome { message, ..outcome }
                    }
                }
            }
        }
    }
}

impl Outcome {
    fn failed(error: &StepError) -> Self {
        Outcome {
            status: Status::Failure,
            message: error.to_string(),
            exit_code: error.exit_code(),
            result: proto::StepResult {
                status: Status::Failure.into(),
                ..proto::StepResult::default()
            },
        }
    }
}
