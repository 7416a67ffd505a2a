//! A job: inputs, limits and outcome.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::super::document::{StepAction, StepFile};
use super::super::expression::is_dynamic;
use super::super::log::OutputSink;
use super::super::resolve::Resolver;
use super::super::wire::proto;
use super::super::wire::proto::step_result::Status;
use super::cancel::{CancelHandle, CancelReason};
use super::command::{CommandRunner, process_error};
use super::error::StepError;
use super::job_processes::JobProcesses;
use super::run::{PreparedCall, StepEngine, check_required};
use super::scope::StepScope;

/// A job to run.
#[derive(Clone, Debug)]
pub struct StepJob {
    pub steps: StepFile,
    /// Existing working directory of commands.
    pub work_dir: PathBuf,
    /// Base directory of relative step references, and `step_dir` in expressions of the job.
    pub dir: PathBuf,
    /// Environment variables that steps inherit.
    pub env: BTreeMap<String, String>,
    /// Variables of the CI job, `vars` in expressions.
    pub vars: BTreeMap<String, String>,
    /// Existing private directory for the files of the job.
    pub scratch: PathBuf,
    /// Time between `SIGTERM` and `SIGKILL`.
    pub grace: Duration,
    /// Time limit of the steps that run after a cancellation, such as those with
    /// `if: ${{ always() }}`.
    pub cleanup: Duration,
    /// Maximum run time of the job.
    pub timeout: Option<Duration>,
}

/// The outcome of a job.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    /// Success, failure or cancelled; never unspecified.
    pub status: Status,
    /// Error message, which ends with the exit code if a command failed. Empty on success.
    pub message: String,
    /// The error message, without the note in `message` that the job exceeded its maximum run time.
    pub error: String,
    /// Exit code of the command that failed, or 128 + signal; 1 if the job failed otherwise, 0 on
    /// success.
    pub exit_code: i32,
    pub result: proto::StepResult,
}

impl StepJob {
    /// Checks that the specification of the job's steps has no required inputs, because a job gets
    /// none.
    pub fn check(&self) -> Result<(), StepError> {
        check_required(&self.steps.spec.inputs, &BTreeMap::new()).map_err(StepError::Spec)
    }

    /// Returns the title of the job: the program if the job is a single command and names it
    /// without an expression, else `job`.
    fn title(&self) -> String {
        let program = match &self.steps.definition.action {
            StepAction::Exec(exec) => exec.command.first(),
            StepAction::Run(_) | StepAction::Builtin(_) => None,
        };
        program.filter(|program| !is_dynamic(program)).map_or("job", String::as_str).to_owned()
    }

    /// Runs the steps. `ended` receives the result of each step as it ends, and may change it: nested steps before
    /// their caller, the job last.
    pub fn run(
        &self,
        resolver: &Resolver,
        output: &mut dyn OutputSink,
        cancel: &CancelHandle,
        ended: &mut dyn FnMut(&mut proto::StepResult),
    ) -> JobOutcome {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let commands = JobProcesses::new(&self.scratch)
            .map_err(process_error("cannot record process groups"))
            .and_then(|groups| {
                CommandRunner::new(groups, cancel, self.grace, deadline)
                    .map_err(process_error("cannot poll output"))
            });
        let commands = match commands {
            Ok(commands) => commands,
            Err(error) => return JobOutcome::from_error(&error.into()),
        };
        let mut runner = StepEngine::new(self, resolver, output, ended, commands);
        let mut scope = StepScope::new(&self.dir, &self.work_dir, runner.vars.clone());
        scope.context.env = runner.environment(&scope);
        let (step, inputs, title) = (proto::Step::default(), BTreeMap::new(), self.title());
        let root = runner.invoke(scope, PreparedCall { step, inputs, file: &self.steps, title });
        runner.end();
        let result = root.result.unwrap_or_default();
        match root.error {
            None => {
                let (message, error) = (String::new(), String::new());
                JobOutcome { status: Status::Success, message, error, exit_code: 0, result }
            }
            Some(error) => {
                let outcome = JobOutcome { result, ..JobOutcome::from_error(&error) };
                match cancel.reason() {
                    None => outcome,
                    Some(CancelReason::Requested) if error.has_other_cause() => outcome,
                    Some(CancelReason::Requested) => {
                        JobOutcome { status: Status::Cancelled, ..outcome }
                    }
                    Some(CancelReason::Timeout) => {
                        let message =
                            format!("job exceeded its maximum run time: {}", outcome.message);
                        JobOutcome { message, ..outcome }
                    }
                }
            }
        }
    }
}

impl JobOutcome {
    fn from_error(error: &StepError) -> Self {
        JobOutcome {
            status: Status::Failure,
            message: error.to_string(),
            error: error.to_string(),
            exit_code: error.exit_code(),
            result: proto::StepResult {
                status: Status::Failure.into(),
                ..proto::StepResult::default()
            },
        }
    }
}
