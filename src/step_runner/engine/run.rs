//! Runs steps and nested steps: inputs, actions, outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::Value;
use super::super::builtin::Command;
use super::super::document::{
    Action, Builtin, Exec, Input, Outputs, Reference, Run, Step, StepFile,
};
use super::super::expression::{
    Context, Expanded, Status as StepStatus, StepState, condition, expand_text, expand_value,
};
use super::super::function_oci::Function;
use super::super::log::{Output, Source, Stream};
use super::super::resolve::{Caller, Interrupt, Loaded, Resolver};
use super::super::wire::proto;
use super::super::wire::proto::step_result::Status;
use super::command::Processes;
use super::error::{ExecError, LoadError, StepError};
use super::job::Job;
use super::record;
use super::scope::{Scope, StepFiles, expand_env, secret};

/// Limit of the nesting depth of steps.
const MAX_DEPTH: usize = 64;

/// Time limit for loading a step file of this host, which takes long only where a mount does not answer.
const LOCAL_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for loading a step file from elsewhere: an image may be large.
const REMOTE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Shorter values are not masked: they occur everywhere.
const MIN_SECRET_BYTES: usize = 4;

/// Runs the steps of one job.
pub struct Runner<'a> {
    pub job: &'a Job,
    pub resolver: &'a Resolver,
    pub output: &'a mut dyn Output,
    ended: &'a mut dyn FnMut(&proto::StepResult),
    pub processes: Processes<'a>,
    /// Whether the step that runs is one of a cancelled job that runs nevertheless.
    in_cleanup: bool,
    /// Environment variables exported by earlier steps.
    pub exports: BTreeMap<String, String>,
    step_files: StepFiles,
}

/// A step call with its loaded file.
pub struct Call<'a> {
    /// The call as recorded in the result.
    pub step: proto::Step,
    pub inputs: BTreeMap<String, Expanded>,
    pub file: &'a StepFile,
    /// What a person knows the step by.
    pub title: String,
}

/// Result, outputs and error of a step that ended.
pub struct StepOutcome {
    pub result: Option<proto::StepResult>,
    outputs: BTreeMap<String, Expanded>,
    pub error: Option<StepError>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        job: &'a Job,
        resolver: &'a Resolver,
        output: &'a mut dyn Output,
        ended: &'a mut dyn FnMut(&proto::StepResult),
        processes: Processes<'a>,
    ) -> Self {
        let step_files = StepFiles::new(&job.scratch);
        Runner {
            job,
            resolver,
            output,
            ended,
            processes,
            in_cleanup: false,
            exports: BTreeMap::new(),
            step_files,
        }
    }

    /// Runs the job's own steps.
    pub(super) fn root(
        &mut self,
        scope: Scope,
        call: Call<'_>,
    ) -> (proto::StepResult, Option<StepError>) {
        let ended = self.invoke(scope, call);
        (ended.result.unwrap_or_default(), ended.error)
    }

    /// Stops background processes.
    pub(super) fn end(&mut self) {
        self.processes.end(self.output);
    }

    pub(super) fn print(&mut self, stream: Stream, text: &str) {
        self.output.write(Source::Runner, stream, text.as_bytes());
    }

    /// Calls a step: its inputs are expanded in the scope of the caller.
    fn call(&mut self, caller: &Scope, step: &Step) -> StepOutcome {
        let title = step.title();
        let (scope, step, inputs, file) = match self.prepare(caller, step) {
            Ok(prepared) => prepared,
            Err(error) => {
                let error = Some(StepError::Load(error));
                return StepOutcome { result: None, outputs: BTreeMap::new(), error };
            }
        };
        self.invoke(scope, Call { step, inputs, file: &file, title })
    }

    fn prepare(
        &mut self,
        caller: &Scope,
        step: &Step,
    ) -> Result<(Scope, proto::Step, BTreeMap<String, Expanded>, StepFile), LoadError> {
        if caller.depth >= MAX_DEPTH {
            return Err(LoadError::TooDeep(MAX_DEPTH));
        }
        let context = &caller.context;
        let reference = step.reference.expand(|text| match expand_text(text, context) {
            Ok((expanded, _)) => Ok(expanded),
            Err(error) => Err(LoadError::Reference { reference: text.to_owned(), error }),
        })?;
        let loaded = self.load(reference, caller)?;
        let known = &loaded.file.spec.inputs;
        let inputs = expand_inputs(step, known, loaded.accepts_secrets, context)?;
        let env = expand_env(&step.env, context, |name, error| LoadError::Env { name, error })?;
        check_required(known, &inputs)?;

        let mut scope = Scope::new(&loaded.dir, &self.job.work_dir, &self.job.vars);
        scope.tree = loaded.tree;
        scope.layers = caller.layers.with(&env);
        scope.depth = caller.depth + 1;
        let values = inputs.iter().map(|(name, input)| (name.clone(), input.value.clone().into()));
        let message = proto::Step {
            name: step.name.clone(),
            step: Some(record::reference(&step.reference)),
            env: self.environment(&scope),
            inputs: values.collect(),
        };
        Ok((scope, message, inputs, loaded.file))
    }

    /// Loads a step file. Where that may take long, the job can be cancelled meanwhile.
    fn load(&mut self, reference: Reference, caller: &Scope) -> Result<Loaded, LoadError> {
        let Scope { dir, tree, context: Context { vars, env, .. }, .. } = caller;
        let limit = match &reference {
            Reference::Builtin { .. } => {
                let interrupt = &Interrupt::new().map_err(LoadError::Start)?;
                let who = Caller { dir, tree: tree.as_deref(), vars, env, interrupt };
                return Ok(self.resolver.load(&reference, &who)?);
            }
            Reference::Local { .. } => LOCAL_LIMIT,
            _ => REMOTE_LIMIT,
        };
        let shown = reference.to_string();
        let (dir, tree, resolver) = (dir.clone(), tree.clone(), self.resolver.clone());
        let (vars, env) = (vars.clone(), env.clone());
        let loaded = self.processes.beside(limit, self.output, move |interrupt| {
            let (dir, tree) = (&*dir, tree.as_deref());
            resolver.load(&reference, &Caller { dir, tree, vars: &vars, env: &env, interrupt })
        });
        Ok(loaded.map_err(|phase| LoadError::Phase { reference: shown, phase })??)
    }

    fn environment(&self, scope: &Scope) -> BTreeMap<String, String> {
        scope.layers.environment(&self.job.env, &self.exports)
    }

    /// Runs a step with its inputs.
    pub(super) fn invoke(&mut self, mut scope: Scope, call: Call<'_>) -> StepOutcome {
        let Call { step, inputs, file, title } = call;
        if has_log(&file.definition.action) {
            self.print(Stream::Out, &format!("Running step {title:?}\n"));
        }
        let mut result = proto::StepResult {
            step: Some(step),
            spec_definition: Some(record::step_file(file)),
            ..proto::StepResult::default()
        };
        self.set_inputs(&mut scope.context, inputs, file);
        let (outputs, error) = match self.act(&mut scope, file, &mut result) {
            Ok(outputs) => (outputs, None),
            Err(error) => (BTreeMap::new(), Some(error)),
        };
        let status = if error.is_none() { Status::Success } else { Status::Failure };
        result.status = status.into();
        (self.ended)(&result);
        StepOutcome { result: Some(result), outputs, error }
    }

    /// Adds inputs to the context, and sensitive ones to the masked values.
    fn set_inputs(
        &mut self,
        context: &mut Context,
        given: BTreeMap<String, Expanded>,
        file: &StepFile,
    ) {
        // A function knows better what is secret in its inputs.
        let masks_itself = matches!(file.definition.action, Action::Builtin(_));
        for (name, input) in &file.spec.inputs {
            let given = given.get(name).cloned();
            let Some(mut value) = given.or_else(|| input.default.clone().map(Expanded::from))
            else {
                continue;
            };
            if input.sensitive {
                value = secret(value.value, true, || format!("inputs.{name}"));
                if !masks_itself {
                    self.mask(&value.value);
                }
            }
            context.inputs.insert(name.clone(), value);
        }
    }

    fn mask(&mut self, value: &Value) {
        match value {
            // They reveal nothing, and occur everywhere.
            Value::Null | Value::Bool(_) => return,
            Value::Number(_) | Value::String(_) => {}
            Value::Array(items) => items.iter().for_each(|item| self.mask(item)),
            Value::Object(members) => members.values().for_each(|value| self.mask(value)),
        }
        let text = value.to_text();
        if text.len() >= MIN_SECRET_BYTES {
            self.output.mask(&text);
        }
    }

    fn act(
        &mut self,
        scope: &mut Scope,
        file: &StepFile,
        result: &mut proto::StepResult,
    ) -> Result<BTreeMap<String, Expanded>, StepError> {
        let files = self.step_files.make(&file.definition).map_err(StepError::OutputFile)?;
        scope.context.output_file = files.output.to_string_lossy().into_owned();
        scope.context.export_file = files.export.to_string_lossy().into_owned();
        scope.context.env = self.environment(scope);
        let own = expand_env(&file.definition.env, &scope.context, |name, error| StepError::Env {
            name,
            error,
        })?;
        scope.layers = scope.layers.with(&own);
        scope.context.env.extend(own);
        result.env.clone_from(&scope.context.env);

        let outputs = match &file.definition.action {
            Action::Exec(exec) => {
                self.exec(exec, &scope.context, result)?;
                let outputs = files.outputs(&file.spec.outputs).map_err(StepError::OutputFile)?;
                expanded(outputs)
            }
            Action::Builtin(Builtin::Script { shell }) => {
                self.script(shell, &scope.context, result)?;
                BTreeMap::new()
            }
            Action::Builtin(Builtin::FunctionOciBuild) => {
                expanded(self.function_oci(Function::Build, scope)?)
            }
            Action::Builtin(Builtin::FunctionOciPublish) => {
                expanded(self.function_oci(Function::Publish, scope)?)
            }
            Action::Builtin(function) => expanded(self.function(*function, scope, result)?),
            Action::Run(run) => {
                let given = self.sequence(scope, run, result, &file.spec.outputs)?;
                let written = files.written_outputs(&file.spec.outputs);
                let mut outputs = expanded(written.map_err(StepError::OutputFile)?);
                outputs.extend(given);
                outputs
            }
        };
        let exports = files.exports().map_err(StepError::ExportFile)?;
        self.exports.extend(exports.iter().map(|(name, value)| (name.clone(), value.clone())));
        result.exports = exports;
        let values = outputs.iter().map(|(name, output)| (name.clone(), output.value.clone()));
        result.outputs = record::values(&values.collect());
        Ok(self.with_secrets(outputs, result, &file.spec.outputs))
    }

    /// Marks sensitive outputs, and adds them to the masked values.
    fn with_secrets(
        &mut self,
        mut outputs: BTreeMap<String, Expanded>,
        result: &proto::StepResult,
        declared: &Outputs,
    ) -> BTreeMap<String, Expanded> {
        let step = result.step.as_ref().map_or("", |step| &step.name);
        let is_sensitive = |name: &String| match declared {
            Outputs::Declared(declared) => declared.get(name).is_some_and(|o| o.sensitive),
            Outputs::Delegate => false,
        };
        // What was made of a secret stays one, however the output is declared.
        for (name, output) in outputs.iter_mut().filter(|(name, _)| is_sensitive(name)) {
            self.mask(&output.value);
            output.secrets = BTreeSet::from([format!("steps.{step}.outputs.{name}")]);
        }
        outputs
    }

    fn exec(
        &mut self,
        exec: &Exec,
        context: &Context,
        result: &mut proto::StepResult,
    ) -> Result<(), ExecError> {
        let expand = |text: &String| match expand_text(text, context) {
            Ok((argument, _)) => Ok(argument),
            Err(error) => Err(ExecError::Argument { text: text.clone(), error }),
        };
        let argv = exec.command.iter().map(expand).collect::<Result<Vec<_>, _>>()?;
        let work_dir = match &exec.work_dir {
            None => self.job.work_dir.clone(),
            Some(text) => {
                let (dir, _) = expand_text(text, context)
                    .map_err(|error| ExecError::WorkDirText { text: text.clone(), error })?;
                self.job.work_dir.join(dir)
            }
        };
        let command = Command { argv: &argv, work_dir: &work_dir, env: &context.env, output: None };
        let ended = self.processes.run(&command, self.output);
        result.exec_result = Some(record::exec_result(&ended, &work_dir, argv));
        ended
    }

    /// Runs steps in sequence; the first failure is the error of the sequence.
    fn sequence(
        &mut self,
        scope: &mut Scope,
        run: &Run,
        result: &mut proto::StepResult,
        declared: &Outputs,
    ) -> Result<BTreeMap<String, Expanded>, StepError> {
        let mut failed = None;
        // Within a cleanup step, nested steps run normally. A job that is cancelled before its first step is
        // none.
        let is_cleanup = self.in_cleanup;
        for step in &run.steps {
            let is_cancelled = !is_cleanup && self.processes.is_cancelled(self.job.cleanup);
            if is_cancelled && failed.is_none() {
                failed = Some(StepError::Cancelled);
            }
            scope.context.failed = failed.is_some();
            scope.context.cancelled = is_cancelled;
            scope.context.env = self.environment(scope);
            let ended = match self.decide(step, &scope.context) {
                Ok(true) => {
                    self.in_cleanup = is_cleanup || is_cancelled;
                    let ended = self.call(scope, step);
                    self.in_cleanup = is_cleanup;
                    ended
                }
                Ok(false) => {
                    let status = StepStatus::Skipped;
                    let state = StepState { status, outputs: BTreeMap::new() };
                    scope.context.steps.insert(step.name.clone(), state);
                    continue;
                }
                Err(error) => {
                    StepOutcome { result: None, outputs: BTreeMap::new(), error: Some(error) }
                }
            };
            result.sub_step_results.extend(ended.result);
            let status = match &ended.error {
                None => StepStatus::Success,
                Some(_) => StepStatus::Failure,
            };
            let state = StepState { outputs: ended.outputs, status };
            scope.context.steps.insert(step.name.clone(), state);
            let Some(error) = ended.error else { continue };
            if step.continue_on_error && !self.processes.is_cancelled(self.job.cleanup) {
                let text = format!("Step {:?} failed, continuing: {error}\n", step.title());
                self.print(Stream::Err, &text);
            } else if failed.is_none() {
                failed = Some(StepError::Step { name: step.title(), error: Box::new(error) });
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        scope.context.env = self.environment(scope);
        outputs(run, declared, &scope.context)
    }

    /// Returns whether the condition of a step holds.
    fn decide(&mut self, step: &Step, context: &Context) -> Result<bool, StepError> {
        let Some(text) = &step.condition else {
            return Ok(!context.failed && !context.cancelled);
        };
        let is_true = condition(text, context).map_err(StepError::Condition)?;
        if !is_true && !context.failed && !context.cancelled {
            self.print(
                Stream::Out,
                &format!("Skipping step {:?}: its condition is false\n", step.name),
            );
        }
        Ok(is_true)
    }
}

/// Returns whether a step writes to the log itself, and is named there before.
fn has_log(action: &Action) -> bool {
    match action {
        Action::Exec(_) => true,
        Action::Run(_) => false,
        Action::Builtin(function) => !matches!(function, Builtin::ScriptLegacy | Builtin::Concrete),
    }
}

/// Expands the expressions in the inputs of a step call.
fn expand_inputs(
    step: &Step,
    known: &BTreeMap<String, Input>,
    accepts_secrets: bool,
    context: &Context,
) -> Result<BTreeMap<String, Expanded>, LoadError> {
    let mut inputs = BTreeMap::new();
    for (name, value) in &step.inputs {
        let Some(input) = known.get(name) else {
            return Err(LoadError::UnknownInput(name.clone()));
        };
        let value = expand_value(value, context)
            .map_err(|error| LoadError::Input { name: name.clone(), error })?;
        if !value.secrets.is_empty() && !input.sensitive && !accepts_secrets {
            let secrets: Vec<_> = value.secrets.iter().map(|name| format!("{name:?}")).collect();
            let secrets = secrets.join(", ");
            return Err(LoadError::Secret { input: name.clone(), secrets });
        }
        inputs.insert(name.clone(), value);
    }
    Ok(inputs)
}

fn check_required(
    known: &BTreeMap<String, Input>,
    given: &BTreeMap<String, Expanded>,
) -> Result<(), LoadError> {
    let is_missing =
        |(name, input): &(&String, &Input)| input.default.is_none() && !given.contains_key(*name);
    match known.iter().find(is_missing) {
        Some((name, _)) => Err(LoadError::MissingInput(name.clone())),
        None => Ok(()),
    }
}

fn expanded(values: BTreeMap<String, Value>) -> BTreeMap<String, Expanded> {
    values.into_iter().map(|(name, value)| (name, value.into())).collect()
}

/// Returns the outputs of a sequence that succeeded. As in GitLab's runner, they are not checked against
/// the declared ones.
fn outputs(
    run: &Run,
    declared: &Outputs,
    context: &Context,
) -> Result<BTreeMap<String, Expanded>, StepError> {
    if let Outputs::Delegate = declared {
        let name = run.delegate.clone().unwrap_or_default();
        let Some(step) = context.steps.get(&name) else { return Err(StepError::Delegate(name)) };
        return Ok(step.outputs.clone());
    }
    let expand = |(name, value): (&String, &Value)| match expand_value(value, context) {
        Ok(expanded) => Ok((name.clone(), expanded)),
        Err(error) => Err(StepError::Output { name: name.clone(), error }),
    };
    run.outputs.iter().map(expand).collect()
}
