//! Runs steps and nested steps: inputs, actions, outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::ExprValue;
use super::super::builtin::StepCommand;
use super::super::document::{
    BuiltinFunction, ExecCommand, OutputSpecs, RunAction, StepAction, StepCall, StepFile,
    StepReference, ValueSpec,
};
use super::super::expression::{
    ExpandedValue, ExprContext, StepEndStatus, StepState, condition, expand_text, expand_value,
};
use super::super::function_oci::OciFunction;
use super::super::log::{LogStream, OutputSink, OutputSource};
use super::super::resolve::{Interrupt, LoadedStep, ReferenceContext, Resolver};
use super::super::wire::proto;
use super::super::wire::proto::step_result::Status;
use super::command::CommandRunner;
use super::error::{ExecError, LoadError, StepError};
use super::job::StepJob;
use super::record;
use super::scope::{JobOutputFiles, StepScope, expand_env};

/// Limit of the nesting depth of steps.
const MAX_DEPTH: usize = 64;

/// Time limit for loading a local step file, which takes long only on a mount that does not respond.
const LOCAL_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for loading a remote step file: an image may be large.
const REMOTE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Minimum length of a sensitive value that is masked: shorter ones occur everywhere.
const MIN_SECRET_BYTES: usize = 4;

/// The engine that runs the steps of one job.
pub struct StepEngine<'a> {
    pub job: &'a StepJob,
    pub resolver: &'a Resolver,
    pub output: &'a mut dyn OutputSink,
    ended: &'a mut dyn FnMut(&mut proto::StepResult),
    pub commands: CommandRunner<'a>,
    /// Set while a step runs although the job is cancelled.
    in_cleanup: bool,
    /// Environment variables exported by earlier steps.
    pub exports: BTreeMap<String, String>,
    /// Number of steps that exported variables so far: if it grows, the environment of later steps
    /// changes.
    export_count: usize,
    /// Variables of the CI job.
    pub vars: Arc<BTreeMap<String, String>>,
    step_files: JobOutputFiles,
}

/// A step call whose file is loaded and whose inputs are expanded.
pub struct PreparedCall<'a> {
    /// The call as recorded in the result.
    pub step: proto::Step,
    pub inputs: BTreeMap<String, ExpandedValue>,
    pub file: &'a StepFile,
    /// Title of the step in the log and in messages.
    pub title: String,
}

/// Result, outputs and error of a step that ended.
pub struct StepOutcome {
    pub result: Option<proto::StepResult>,
    outputs: BTreeMap<String, ExpandedValue>,
    pub error: Option<StepError>,
}

impl From<StepError> for StepOutcome {
    /// Returns the outcome of a step that was not run.
    fn from(error: StepError) -> Self {
        StepOutcome { result: None, outputs: BTreeMap::new(), error: Some(error) }
    }
}

impl<'a> StepEngine<'a> {
    pub(super) fn new(
        job: &'a StepJob,
        resolver: &'a Resolver,
        output: &'a mut dyn OutputSink,
        ended: &'a mut dyn FnMut(&mut proto::StepResult),
        commands: CommandRunner<'a>,
    ) -> Self {
        let step_files = JobOutputFiles::new(&job.scratch);
        StepEngine {
            job,
            resolver,
            output,
            ended,
            commands,
            in_cleanup: false,
            exports: BTreeMap::new(),
            export_count: 0,
            vars: Arc::new(job.vars.clone()),
            step_files,
        }
    }

    pub(super) fn end(&mut self) {
        self.commands.end(self.output);
    }

    pub(super) fn print(&mut self, stream: LogStream, text: &str) {
        self.output.write(OutputSource::Runner, stream, text.as_bytes());
    }

    /// Calls a step: its inputs are expanded in the scope of the caller.
    fn call(&mut self, caller: &StepScope, step: &StepCall) -> Result<StepOutcome, LoadError> {
        let title = step.title();
        let (scope, step, inputs, file) = self.prepare(caller, step)?;
        Ok(self.invoke(scope, PreparedCall { step, inputs, file: &file, title }))
    }

    // Separate from `call`, whose frame is on the stack while nested steps run.
    fn prepare(
        &mut self,
        caller: &StepScope,
        step: &StepCall,
    ) -> Result<(StepScope, proto::Step, BTreeMap<String, ExpandedValue>, StepFile), LoadError>
    {
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

        let mut scope = StepScope::new(&loaded.dir, &self.job.work_dir, self.vars.clone());
        scope.tree = loaded.tree;
        scope.declared_env.clone_from(&caller.declared_env);
        scope.declared_env.extend(env.clone());
        scope.depth = caller.depth + 1;
        scope.context.env = match env.is_empty() {
            true => context.env.clone(),
            false => self.environment(&scope),
        };
        let values = inputs.iter().map(|(name, input)| (name.clone(), input.value.clone().into()));
        let message = proto::Step {
            name: step.name.clone(),
            step: Some(record::reference(&step.reference)),
            env: (*scope.context.env).clone(),
            inputs: values.collect(),
        };
        Ok((scope, message, inputs, loaded.file))
    }

    /// Loads a step file. Unless it is built in, it is loaded in another thread, and the job can be
    /// cancelled meanwhile.
    fn load(
        &mut self,
        reference: StepReference,
        caller: &StepScope,
    ) -> Result<LoadedStep, LoadError> {
        let StepScope { dir, tree, context: ExprContext { vars, env, .. }, .. } = caller;
        let limit = match &reference {
            StepReference::Builtin { .. } => {
                let interrupt = &Interrupt::new().map_err(LoadError::Start)?;
                let who = ReferenceContext { dir, tree: tree.as_deref(), vars, env, interrupt };
                return Ok(self.resolver.load(&reference, &who)?);
            }
            StepReference::Local { .. } => LOCAL_LIMIT,
            _ => REMOTE_LIMIT,
        };
        let shown = reference.to_string();
        let (dir, tree, resolver) = (dir.clone(), tree.clone(), self.resolver.clone());
        let (vars, env) = (vars.clone(), env.clone());
        let loaded = self.commands.run_blocking(limit, self.output, move |interrupt| {
            let (dir, tree) = (&*dir, tree.as_deref());
            resolver.load(
                &reference,
                &ReferenceContext { dir, tree, vars: &vars, env: &env, interrupt },
            )
        });
        Ok(loaded.map_err(|error| LoadError::Interrupted { reference: shown, error })??)
    }

    /// Returns the environment of a step. Variables declared in step files override those exported by steps,
    /// which override the job's environment.
    pub(super) fn environment(&self, scope: &StepScope) -> Arc<BTreeMap<String, String>> {
        let mut env = self.job.env.clone();
        for layer in [&self.exports, &scope.declared_env] {
            env.extend(layer.clone());
        }
        Arc::new(env)
    }

    /// Runs a step with its inputs. `scope` already contains the environment of the step, except
    /// the variables in its file.
    pub(super) fn invoke(&mut self, mut scope: StepScope, call: PreparedCall<'_>) -> StepOutcome {
        let PreparedCall { step, inputs, file, title } = call;
        if is_announced(&file.definition.action) {
            self.print(LogStream::Out, &format!("Running step name={}\n", quote_if_needed(&title)));
        }
        let mut result = proto::StepResult {
            step: Some(step),
            spec_definition: Some(record::step_file(file)),
            ..proto::StepResult::default()
        };
        self.set_inputs(&mut scope.context, inputs, file);
        let (outputs, error) = match self.run_definition(&mut scope, file, &mut result) {
            Ok(outputs) => (outputs, None),
            Err(error) => (BTreeMap::new(), Some(error)),
        };
        let status = if error.is_none() { Status::Success } else { Status::Failure };
        result.status = status.into();
        (self.ended)(&mut result);
        StepOutcome { result: Some(result), outputs, error }
    }

    /// Adds inputs to the context of expressions, and sensitive ones, except those of built-in
    /// functions, to the values masked in the log.
    fn set_inputs(
        &mut self,
        context: &mut ExprContext,
        given: BTreeMap<String, ExpandedValue>,
        file: &StepFile,
    ) {
        // A function selects the secrets in its inputs itself.
        let masks_itself = matches!(file.definition.action, StepAction::Builtin(_));
        for (name, input) in &file.spec.inputs {
            let given = given.get(name).cloned();
            let Some(mut value) = given.or_else(|| input.default.clone().map(ExpandedValue::from))
            else {
                continue;
            };
            if input.sensitive {
                value.secrets = BTreeSet::from([format!("inputs.{name}")]);
                if !masks_itself {
                    self.mask(&value.value);
                }
            }
            context.inputs.insert(name.clone(), value);
        }
    }

    fn mask(&mut self, value: &ExprValue) {
        match value {
            // Null and booleans reveal nothing, and occur everywhere.
            ExprValue::Null | ExprValue::Bool(_) => return,
            ExprValue::Number(_) | ExprValue::String(_) => {}
            ExprValue::Array(items) => items.iter().for_each(|item| self.mask(item)),
            ExprValue::Object(members) => members.values().for_each(|value| self.mask(value)),
        }
        let text = value.to_text();
        if text.len() >= MIN_SECRET_BYTES {
            self.output.mask(&text);
        }
    }

    fn run_definition(
        &mut self,
        scope: &mut StepScope,
        file: &StepFile,
        result: &mut proto::StepResult,
    ) -> Result<BTreeMap<String, ExpandedValue>, StepError> {
        let files = self.step_files.make(&file.definition).map_err(StepError::OutputFile)?;
        scope.context.output_file = files.output.to_string_lossy().into_owned();
        scope.context.export_file = files.export.to_string_lossy().into_owned();
        let own = expand_env(&file.definition.env, &scope.context, |name, error| StepError::Env {
            name,
            error,
        })?;
        if !own.is_empty() {
            scope.declared_env.extend(own.clone());
            Arc::make_mut(&mut scope.context.env).extend(own);
        }
        result.env.clone_from(&scope.context.env);

        let outputs = match &file.definition.action {
            StepAction::Exec(exec) => {
                self.exec(exec, &scope.context, result)?;
                let outputs = files.outputs(&file.spec.outputs).map_err(StepError::OutputFile)?;
                expand_values(outputs)
            }
            StepAction::Builtin(BuiltinFunction::Script { shell }) => {
                self.script(shell, &scope.context, result)?;
                BTreeMap::new()
            }
            StepAction::Builtin(BuiltinFunction::FunctionOciBuild) => {
                expand_values(self.function_oci(OciFunction::Build, scope)?)
            }
            StepAction::Builtin(BuiltinFunction::FunctionOciPublish) => {
                expand_values(self.function_oci(OciFunction::Publish, scope)?)
            }
            StepAction::Builtin(function) => {
                expand_values(self.function(*function, scope, result)?)
            }
            StepAction::Run(run) => {
                let given = self.sequence(scope, run, result, &file.spec.outputs)?;
                let written = files.written_outputs(&file.spec.outputs);
                let mut outputs = expand_values(written.map_err(StepError::OutputFile)?);
                outputs.extend(given);
                outputs
            }
        };
        let exports = files.exports().map_err(StepError::ExportFile)?;
        if !exports.is_empty() {
            self.exports.extend(exports.iter().map(|(name, value)| (name.clone(), value.clone())));
            self.export_count += 1;
        }
        result.exports = exports;
        let values = outputs.iter().map(|(name, output)| (name.clone(), output.value.clone()));
        result.outputs = record::values(&values.collect());
        Ok(self.mark_secrets(outputs, result, &file.spec.outputs))
    }

    /// Marks outputs that are declared sensitive, and adds them to the values masked in the log.
    fn mark_secrets(
        &mut self,
        mut outputs: BTreeMap<String, ExpandedValue>,
        result: &proto::StepResult,
        declared: &OutputSpecs,
    ) -> BTreeMap<String, ExpandedValue> {
        let step = result.step.as_ref().map_or("", |step| &step.name);
        let is_sensitive = |name: &String| match declared {
            OutputSpecs::Declared(declared) => declared.get(name).is_some_and(|o| o.sensitive),
            OutputSpecs::Delegate => false,
        };
        // Outputs derived from a secret stay sensitive, even if they are not declared so.
        for (name, output) in outputs.iter_mut().filter(|(name, _)| is_sensitive(name)) {
            self.mask(&output.value);
            output.secrets = BTreeSet::from([format!("steps.{step}.outputs.{name}")]);
        }
        outputs
    }

    fn exec(
        &mut self,
        exec: &ExecCommand,
        context: &ExprContext,
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
        let command =
            StepCommand { argv: &argv, work_dir: &work_dir, env: &context.env, output: None };
        let ended = self.commands.run(&command, self.output);
        let ended = ended.map_err(|error| error.with_hint(&argv[0], &work_dir, &context.step_dir));
        result.exec_result = Some(record::exec_result(&ended, &work_dir, argv));
        ended
    }

    /// Runs steps in sequence; the first failure is the error of the sequence.
    fn sequence(
        &mut self,
        scope: &mut StepScope,
        run: &RunAction,
        result: &mut proto::StepResult,
        declared: &OutputSpecs,
    ) -> Result<BTreeMap<String, ExpandedValue>, StepError> {
        let mut failed = None;
        // Within a cleanup step, nested steps run normally. A job that is cancelled before its first step is
        // not in a cleanup step.
        let is_cleanup = self.in_cleanup;
        for step in &run.steps {
            let is_cancelled = !is_cleanup && self.commands.is_cancelled(self.job.cleanup);
            if is_cancelled && failed.is_none() {
                failed = Some(StepError::Cancelled);
            }
            scope.context.failed = failed.is_some();
            scope.context.cancelled = is_cancelled;
            let ended = match self.is_due(step, &scope.context) {
                Ok(true) => {
                    self.in_cleanup = is_cleanup || is_cancelled;
                    let before = self.export_count;
                    let ended = self.call(scope, step);
                    let ended = ended.unwrap_or_else(|error| StepError::Load(error).into());
                    self.in_cleanup = is_cleanup;
                    if self.export_count > before {
                        scope.context.env = self.environment(scope);
                    }
                    ended
                }
                Ok(false) => {
                    let status = StepEndStatus::Skipped;
                    let state = StepState { status, outputs: BTreeMap::new() };
                    scope.context.steps.insert(step.name.clone(), state);
                    continue;
                }
                Err(error) => error.into(),
            };
            result.sub_step_results.extend(ended.result);
            let status = match &ended.error {
                None => StepEndStatus::Success,
                Some(_) => StepEndStatus::Failure,
            };
            let state = StepState { outputs: ended.outputs, status };
            scope.context.steps.insert(step.name.clone(), state);
            let Some(error) = ended.error else { continue };
            if step.continue_on_error && !self.commands.is_cancelled(self.job.cleanup) {
                let text = format!("Step {:?} failed, continuing: {error}\n", step.title());
                self.print(LogStream::Err, &text);
            } else if failed.is_none() {
                failed = Some(StepError::Step { name: step.title(), error: Box::new(error) });
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        outputs(run, declared, &scope.context)
    }

    /// Returns whether a step is to run: its `if` condition is true, or it has none and the
    /// sequence has neither failed nor been cancelled.
    fn is_due(&mut self, step: &StepCall, context: &ExprContext) -> Result<bool, StepError> {
        let Some(text) = &step.condition else {
            return Ok(!context.failed && !context.cancelled);
        };
        let is_true = condition(text, context).map_err(StepError::Condition)?;
        if !is_true && !context.failed && !context.cancelled {
            self.print(
                LogStream::Out,
                &format!("Skipping step {:?}: its condition is false\n", step.name),
            );
        }
        Ok(is_true)
    }
}

/// Returns whether a line in the log announces the step.
fn is_announced(action: &StepAction) -> bool {
    match action {
        StepAction::Exec(_) => true,
        StepAction::Run(_) => false,
        StepAction::Builtin(function) => {
            !matches!(function, BuiltinFunction::ScriptLegacy | BuiltinFunction::Concrete)
        }
    }
}

/// Returns the value of an attribute as Go's `slog` writes it in a line.
fn quote_if_needed(value: &str) -> String {
    let is_special = |c: char| match c {
        '=' | '"' => true,
        '\\' | '\'' => false,
        // Characters that Rust escapes are not printable: they could change how the line looks.
        _ => c.is_whitespace() || c.escape_debug().len() > 1,
    };
    match value.is_empty() || value.contains(is_special) {
        true => format!("{value:?}"),
        false => value.to_owned(),
    }
}

/// Expands the expressions in the inputs of a step call.
fn expand_inputs(
    step: &StepCall,
    known: &BTreeMap<String, ValueSpec>,
    accepts_secrets: bool,
    context: &ExprContext,
) -> Result<BTreeMap<String, ExpandedValue>, LoadError> {
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

pub(super) fn check_required(
    known: &BTreeMap<String, ValueSpec>,
    given: &BTreeMap<String, ExpandedValue>,
) -> Result<(), LoadError> {
    let is_missing = |(name, input): &(&String, &ValueSpec)| {
        input.default.is_none() && !given.contains_key(*name)
    };
    match known.iter().find(is_missing) {
        Some((name, _)) => Err(LoadError::MissingInput(name.clone())),
        None => Ok(()),
    }
}

fn expand_values(values: BTreeMap<String, ExprValue>) -> BTreeMap<String, ExpandedValue> {
    values.into_iter().map(|(name, value)| (name, value.into())).collect()
}

/// Returns the outputs of a successful sequence. As in GitLab's runner, they are not checked against the
/// declared outputs.
fn outputs(
    run: &RunAction,
    declared: &OutputSpecs,
    context: &ExprContext,
) -> Result<BTreeMap<String, ExpandedValue>, StepError> {
    if let OutputSpecs::Delegate = declared {
        let name = run.delegate.clone().unwrap_or_default();
        let Some(step) = context.steps.get(&name) else { return Err(StepError::Delegate(name)) };
        return Ok(step.outputs.clone());
    }
    let expand = |(name, value): (&String, &ExprValue)| match expand_value(value, context) {
        Ok(expanded) => Ok((name.clone(), expanded)),
        Err(error) => Err(StepError::Output { name: name.clone(), error }),
    };
    run.outputs.iter().map(expand).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_quoted_if_needed() {
        for (title, expected) in [
            ("build", "build"),
            ("./bin/\u{e9}'s\\x", "./bin/\u{e9}'s\\x"),
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("a=b", r#""a=b""#),
            (r#"a"b"#, r#""a\"b""#),
            ("a\u{1b}[2J", r#""a\u{1b}[2J""#),
            ("a\u{202e}b", r#""a\u{202e}b""#),
        ] {
            assert_eq!(quote_if_needed(title), expected);
        }
    }
}
