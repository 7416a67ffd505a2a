//! Functions of this program as steps: what they get of the engine.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::Value;
use super::super::builtin::{
    self, Cancellation, Command, CommandError, Host, JobState, Limits, ScriptFile,
};
use super::super::document::{Action, Builtin, Definition, Run, Spec, Step, StepFile};
use super::super::expression::Context;
use super::super::function_oci::{self, Function, FunctionError};
use super::super::log::{Output, Source, Stream};
use super::super::resolve::Interrupt;
use super::super::wire::proto;
use super::command::Processes;
use super::error::{ExecError, StepError};
use super::phase::PhaseError;
use super::record;
use super::run::{Call, Runner};
use super::scope::Scope;

/// Name of the steps of a function in results.
const NESTED: &str = "run";

impl Runner<'_> {
    /// Runs the input `script` in a shell. It is passed in a file, and recorded as an argument.
    pub(super) fn script(
        &mut self,
        shell: &str,
        context: &Context,
        result: &mut proto::StepResult,
    ) -> Result<(), ExecError> {
        // Not by an expression, whose results have a maximum length.
        let script =
            context.inputs.get("script").map_or(String::new(), |input| input.value.to_text());
        let work_dir = &self.job.work_dir;
        let mut run = || {
            if script.contains('\0') {
                return Err(ExecError::Nul("the script".to_owned()));
            }
            let file = ScriptFile::new(&self.job.scratch, &script).map_err(ExecError::Script)?;
            let path = context.env.get("PATH").map_or("", String::as_str);
            let argv = file.as_text_of(shell, work_dir, path);
            let command = Command { argv: &argv, work_dir, env: &context.env, output: None };
            self.processes.run(&command, self.output)
        };
        let ended = run();
        let argv = vec![shell.to_owned(), "-c".to_owned(), script];
        result.exec_result = Some(record::exec_result(&ended, work_dir, argv));
        ended
    }

    /// Runs another function. Returns its outputs.
    pub(super) fn function(
        &mut self,
        function: Builtin,
        scope: &Scope,
        result: &mut proto::StepResult,
    ) -> Result<BTreeMap<String, Value>, StepError> {
        let inputs = scope.context.inputs.iter();
        let inputs = inputs.map(|(name, input)| (name.clone(), input.value.clone())).collect();
        // Its links are resolved: what lies beside the program lies beside the file.
        let executable = std::fs::canonicalize("/proc/self/exe").ok();
        let mut host = FunctionHost { runner: self, scope, result, executable };
        Ok(builtin::run(function, &inputs, &mut host)?)
    }
}

/// The step of a function.
struct FunctionHost<'a, 'b> {
    runner: &'a mut Runner<'b>,
    scope: &'a Scope,
    result: &'a mut proto::StepResult,
    executable: Option<PathBuf>,
}

impl FunctionHost<'_, '_> {
    /// Returns why a command with these limits has to stop, if it has to.
    fn stopped(&self, limits: &Limits) -> Option<CommandError> {
        let is_spared = limits.cancellation == Cancellation::Spares;
        match self.runner.processes.state() {
            JobState::Killed => return Some(CommandError::cancelled()),
            JobState::TimedOut => return Some(CommandError::deadline()),
            JobState::Cancelled if !is_spared => return Some(CommandError::cancelled()),
            JobState::Cancelled | JobState::Running => {}
        }
        let is_over = limits.deadline.is_some_and(|deadline| deadline <= Instant::now());
        is_over.then(CommandError::deadline)
    }
}

impl Host for FunctionHost<'_, '_> {
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
        self.runner.processes.state()
    }

    fn print(&mut self, stream: Stream, text: &str) {
        // Between the lines of commands, so it is of their stream.
        self.runner.output.write(Source::Step, stream, text.as_bytes());
    }

    fn mask(&mut self, secret: &str) {
        self.runner.output.mask(secret);
    }

    fn run(&mut self, command: &Command<'_>, limits: &Limits) -> Result<(), CommandError> {
        if let Some(error) = self.stopped(limits) {
            return Err(error);
        }
        let processes = &mut self.runner.processes;
        let outer = processes.enter(*limits);
        let ended = processes.run(command, self.runner.output);
        processes.leave(outer);
        let was_stopped = processes.was_stopped();
        match ended {
            // It was to end, and says that all is well.
            Ok(()) if was_stopped => {
                Err(self.stopped(limits).unwrap_or_else(CommandError::cancelled))
            }
            ended => Ok(ended?),
        }
    }

    fn pause(&mut self, time: Duration, limits: &Limits) {
        let processes = &mut self.runner.processes;
        let outer = processes.enter(*limits);
        processes.pause(time, self.runner.output);
        processes.leave(outer);
    }

    fn steps(
        &mut self,
        steps: Vec<Step>,
        env: &BTreeMap<String, String>,
        limits: &Limits,
    ) -> Result<(), CommandError> {
        if let Some(error) = self.stopped(limits) {
            return Err(error);
        }
        let runner = &mut *self.runner;
        let run = Run { steps, outputs: BTreeMap::new(), delegate: None };
        let definition = Definition { env: BTreeMap::new(), action: Action::Run(run) };
        let file = StepFile { spec: Spec::default(), definition };
        let dir = &runner.job.work_dir;
        let mut scope = Scope::new(dir, dir, &runner.job.vars);
        scope.layers.declared.clone_from(env);
        scope.tree.clone_from(&self.scope.tree);
        scope.depth = self.scope.depth + 1;
        let step = proto::Step { name: NESTED.to_owned(), ..proto::Step::default() };

        let exports = std::mem::take(&mut runner.exports);
        let outer = runner.processes.enter(*limits);
        let (inputs, title) = (BTreeMap::new(), NESTED.to_owned());
        let outcome = runner.invoke(scope, Call { step, inputs, file: &file, title });
        runner.processes.leave(outer);
        runner.exports = exports;
        self.result.sub_step_results.extend(outcome.result);
        match outcome.error {
            None => Ok(()),
            Some(error) => Err(CommandError {
                failure: builtin::Failure::Exit,
                code: error.exit_code(),
                message: error.to_string(),
            }),
        }
    }
}

/// How long a function may take where the job has no limit.
const LIMIT: Duration = Duration::from_secs(24 * 3600);

impl Runner<'_> {
    /// Runs a function on a thread of its own: a registry may be silent for long. Returns its outputs.
    pub(super) fn function_oci(
        &mut self,
        function: Function,
        scope: &Scope,
    ) -> Result<BTreeMap<String, Value>, StepError> {
        let failed = |error| StepError::FunctionOci(Box::new(error));
        let inputs = scope.context.inputs.iter();
        let call = function_oci::Call {
            function,
            inputs: inputs.map(|(name, input)| (name.clone(), input.value.clone())).collect(),
            work_dir: self.job.work_dir.clone(),
            vars: self.job.vars.clone(),
            env: scope.context.env.clone(),
            remote: self.resolver.shared_remote(),
        };
        match self.processes.function(call, self.output) {
            Ok(result) => result.map_err(failed),
            Err(PhaseError::Start(error)) => Err(failed(FunctionError::Start(error))),
            Err(PhaseError::Interrupted | PhaseError::TooLong(_)) => {
                Err(failed(FunctionError::Cancelled))
            }
        }
    }
}

impl Processes<'_> {
    /// Runs a function, and forwards what it writes to its log like the output of a command.
    fn function(
        &mut self,
        call: function_oci::Call,
        output: &mut dyn Output,
    ) -> Result<Result<BTreeMap<String, Value>, FunctionError>, PhaseError> {
        let log = [self.log_of_function(Stream::Out)?, self.log_of_function(Stream::Err)?];
        let work = move |interrupt: &Interrupt| {
            let write = |stream: Stream, line: &str| {
                let [out, err] = &log;
                let mut file: &File = if stream == Stream::Out { out } else { err };
                // Nobody reads it if the job is over.
                let _ = file.write_all(format!("{line}\n").as_bytes());
            };
            call.run(interrupt, &write)
        };
        let result = self.beside(LIMIT, output, work);
        self.hear_function(output);
        result
    }
}
