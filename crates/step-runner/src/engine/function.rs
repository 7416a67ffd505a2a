//! Runs built-in functions (`builtin://`) as steps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::ExprValue;
use super::super::builtin::{
    self, BuiltinHost, CancelEffect, CommandError, CommandLimits, JobState, ScriptCommand,
    StepCommand,
};
use super::super::document::{BuiltinFunction, StepCall, StepFile};
use super::super::expression::ExprContext;
use super::super::function_oci::{self, FunctionError, OciFunction};
use super::super::log::{LogStream, OutputSink, OutputSource};
use super::super::resolve::Interrupt;
use super::super::wire::proto;
use super::command::CommandRunner;
use super::error::{ExecError, StepError};
use super::record;
use super::run::{PreparedCall, StepEngine};
use super::scope::StepScope;
use super::work::WorkError;

/// Name, in results and messages, of the sequence of steps that a built-in function runs.
const NESTED: &str = "run";

impl StepEngine<'_> {
    /// Runs the input `script` in a shell. The result records the script as an argument of the shell.
    pub(super) fn script(
        &mut self,
        shell: &str,
        context: &ExprContext,
        result: &mut proto::StepResult,
    ) -> Result<(), ExecError> {
        // Not by an expression, as expanded values have a maximum length.
        let script =
            context.inputs.get("script").map_or(String::new(), |input| input.value.to_text());
        let work_dir = &self.job.work_dir;
        let mut run = || {
            if script.contains('\0') {
                return Err(ExecError::Nul("the script".to_owned()));
            }
            let scratch = &self.job.scratch;
            let script =
                ScriptCommand::new(shell, script.clone(), scratch).map_err(ExecError::Script)?;
            let command =
                StepCommand { argv: &script.argv, work_dir, env: &context.env, output: None };
            self.commands.run(&command, self.output)
        };
        let ended = run();
        let argv = vec![shell.to_owned(), "-c".to_owned(), script];
        result.exec_result = Some(record::exec_result(&ended, work_dir, argv));
        ended
    }

    /// Runs a built-in function, which executes commands through a [`BuiltinHost`]. Returns its
    /// outputs.
    pub(super) fn function(
        &mut self,
        function: BuiltinFunction,
        scope: &StepScope,
        result: &mut proto::StepResult,
    ) -> Result<BTreeMap<String, ExprValue>, StepError> {
        let inputs = scope.context.inputs.iter();
        let inputs = inputs.map(|(name, input)| (name.clone(), input.value.clone())).collect();
        // Symlinks are resolved: certificates and git are found beside the program itself.
        let executable = std::fs::canonicalize("/proc/self/exe").ok();
        let mut host = FunctionHost { runner: self, scope, result, executable };
        Ok(builtin::run(function, &inputs, &mut host)?)
    }
}

/// The [`BuiltinHost`] of one call of a built-in function: the engine, and the step that called it.
struct FunctionHost<'a, 'b> {
    runner: &'a mut StepEngine<'b>,
    scope: &'a StepScope,
    result: &'a mut proto::StepResult,
    executable: Option<PathBuf>,
}

impl FunctionHost<'_, '_> {
    /// Returns an error if a command with these limits must stop: the job is cancelled, or a time
    /// limit is over.
    fn stop_error(&self, limits: &CommandLimits) -> Option<CommandError> {
        let is_spared = limits.cancellation == CancelEffect::None;
        match self.runner.commands.state() {
            JobState::Killed => return Some(CommandError::cancelled()),
            JobState::TimedOut => return Some(CommandError::deadline()),
            JobState::Cancelled if !is_spared => return Some(CommandError::cancelled()),
            JobState::Cancelled | JobState::Running => {}
        }
        let is_over = limits.deadline.is_some_and(|deadline| deadline <= Instant::now());
        is_over.then(CommandError::deadline)
    }
}

impl BuiltinHost for FunctionHost<'_, '_> {
    fn work_dir(&self) -> &Path {
        &self.runner.job.work_dir
    }

    fn scratch(&self) -> &Path {
        &self.runner.job.scratch
    }

    fn env(&self) -> &BTreeMap<String, String> {
        &self.scope.context.env
    }

    fn vars(&self) -> &BTreeMap<String, String> {
        &self.runner.job.vars
    }

    fn executable(&self) -> Option<&Path> {
        self.executable.as_deref()
    }

    fn state(&mut self) -> JobState {
        self.runner.commands.state()
    }

    fn print(&mut self, stream: LogStream, text: &str) {
        // Written to the stream of commands, to stay in order with their lines.
        self.runner.output.write(OutputSource::Step, stream, text.as_bytes());
    }

    fn mask(&mut self, secret: &str) {
        self.runner.output.mask(secret);
    }

    fn run(
        &mut self,
        command: &StepCommand<'_>,
        limits: &CommandLimits,
    ) -> Result<(), CommandError> {
        if let Some(error) = self.stop_error(limits) {
            return Err(error);
        }
        let commands = &mut self.runner.commands;
        let outer = commands.enter(*limits);
        let ended = commands.run(command, self.runner.output);
        commands.leave(outer);
        let was_stopped = commands.was_stopped();
        match ended {
            // The command was stopped, but exited with code 0.
            Ok(()) if was_stopped => {
                Err(self.stop_error(limits).unwrap_or_else(CommandError::cancelled))
            }
            ended => Ok(ended?),
        }
    }

    fn pause(&mut self, time: Duration, limits: &CommandLimits) {
        let commands = &mut self.runner.commands;
        let outer = commands.enter(*limits);
        commands.pause(time, self.runner.output);
        commands.leave(outer);
    }

    fn steps(
        &mut self,
        steps: Vec<StepCall>,
        env: &BTreeMap<String, String>,
        limits: &CommandLimits,
    ) -> Result<(), CommandError> {
        if let Some(error) = self.stop_error(limits) {
            return Err(error);
        }
        let runner = &mut *self.runner;
        let file = StepFile::of_steps(steps);
        let dir = &runner.job.work_dir;
        let mut scope = StepScope::new(dir, dir, runner.vars.clone());
        scope.declared_env.clone_from(env);
        scope.tree.clone_from(&self.scope.tree);
        scope.depth = self.scope.depth + 1;
        let step = proto::Step { name: NESTED.to_owned(), ..proto::Step::default() };

        let exports = std::mem::take(&mut runner.exports);
        scope.context.env = runner.environment(&scope);
        let outer = runner.commands.enter(*limits);
        let (inputs, title) = (BTreeMap::new(), NESTED.to_owned());
        let outcome = runner.invoke(scope, PreparedCall { step, inputs, file: &file, title });
        runner.commands.leave(outer);
        runner.exports = exports;
        self.result.sub_step_results.extend(outcome.result);
        match outcome.error {
            None => Ok(()),
            Some(error) => Err(CommandError {
                failure: builtin::CommandFailure::Exit,
                code: error.exit_code(),
                message: error.to_string(),
            }),
        }
    }
}

/// Time limit for building or publishing an image, besides that of the job.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

impl StepEngine<'_> {
    /// Builds or publishes an image, and returns the outputs. A registry may take long to respond,
    /// so this runs in another thread, and the job can be cancelled meanwhile.
    pub(super) fn function_oci(
        &mut self,
        function: OciFunction,
        scope: &StepScope,
    ) -> Result<BTreeMap<String, ExprValue>, StepError> {
        let failed = |error| StepError::FunctionOci(Box::new(error));
        let inputs = scope.context.inputs.iter();
        let call = function_oci::FunctionCall {
            function,
            inputs: inputs.map(|(name, input)| (name.clone(), input.value.clone())).collect(),
            work_dir: self.job.work_dir.clone(),
            vars: self.job.vars.clone(),
            env: (*scope.context.env).clone(),
            remote: self.resolver.shared_remote(),
        };
        match self.commands.function(call, self.output) {
            Ok(result) => result.map_err(failed),
            Err(WorkError::Start(error)) => Err(failed(FunctionError::Start(error))),
            Err(WorkError::Interrupted | WorkError::TooLong(_)) => {
                Err(failed(FunctionError::Cancelled))
            }
        }
    }
}

impl CommandRunner<'_> {
    /// Builds or publishes an image in another thread, and forwards its log like the output of a
    /// command.
    fn function(
        &mut self,
        call: function_oci::FunctionCall,
        output: &mut dyn OutputSink,
    ) -> Result<Result<BTreeMap<String, ExprValue>, FunctionError>, WorkError> {
        let log = [self.pipes.add(LogStream::Out)?, self.pipes.add(LogStream::Err)?];
        let log = log.map(File::from);
        let work = move |interrupt: &Interrupt| {
            let write = |stream: LogStream, line: &str| {
                let [out, err] = &log;
                let mut file: &File = if stream == LogStream::Out { out } else { err };
                // The pipe is closed if the job is over.
                let _ = file.write_all(format!("{line}\n").as_bytes());
            };
            call.run(interrupt, &write)
        };
        let result = self.run_blocking(LIMIT, output, work);
        // An unreadable log does not change the result of the function.
        let _ = self.pipes.drain(output);
        output.flush();
        result
    }
}
