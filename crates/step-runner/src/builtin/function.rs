//! Runs built-in functions, and implements one of them: `builtin://script_legacy`, which runs the
//! script of a job without steps.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::document::BuiltinFunction;
use super::super::{DeclaredType, ExprValue};
use super::concrete;
use super::error::{BuiltinError, JobPartContext as _, ignore_benign};
use super::gitlab_env::GitlabEnv;
use super::host::{BuiltinHost, CommandLimits, FunctionInputs, StepCommand};
use super::script::{ScriptFile, TraceOptions, find_shell, legacy};

/// Runs a function. Returns its outputs by name.
///
/// # Errors
///
/// Fails if an input is invalid, or a command fails.
pub fn run(
    function: BuiltinFunction,
    inputs: &FunctionInputs,
    host: &mut dyn BuiltinHost,
) -> Result<BTreeMap<String, ExprValue>, BuiltinError> {
    match function {
        // Run by the engine as a command, which is recorded in the result.
        BuiltinFunction::Script { .. } => {}
        // Run by the engine in separate threads, as they wait for registries, not for commands.
        BuiltinFunction::FunctionOciBuild | BuiltinFunction::FunctionOciPublish => {}
        BuiltinFunction::ScriptLegacy => script_legacy(inputs, host)?,
        BuiltinFunction::Concrete => concrete::run(inputs, host)?,
    }
    Ok(BTreeMap::new())
}

/// Job variable with the path of the project's directory for temporary files.
const TEMP_DIR: &str = "RUNNER_TEMP_PROJECT_DIR";

/// Runs `builtin://script_legacy`: writes the lines of the input `script` to a file, and executes
/// it with the first available shell.
fn script_legacy(inputs: &FunctionInputs, host: &mut dyn BuiltinHost) -> Result<(), BuiltinError> {
    let lines = lines(inputs)?;
    let tracing = TraceOptions {
        xtrace: flag(inputs, "debug_trace")?,
        check: flag(inputs, "check_for_errors")?,
        sections: flag(inputs, "trace_sections")?,
    };
    // Selects one of two styles of quoting; every shell supports the style used here.
    flag(inputs, "posix_escape")?;
    let path = host.env().get("PATH").map_or("", String::as_str);
    let shell = find_shell(host.work_dir(), path)?.to_string_lossy().into_owned();
    let mut env = host.env().clone();
    env.extend(host.vars().clone());
    env.extend(earlier_variables(host.vars()));
    let file = ScriptFile::new(host.scratch(), &legacy(&shell, &lines, tracing))?;
    let argv = [shell, file.path().to_string_lossy().into_owned()];
    let work_dir = host.work_dir().to_owned();
    let command = StepCommand { argv: &argv, work_dir: &work_dir, env: &env, output: None };
    ignore_benign(host.run(&command, &CommandLimits::default())).with_part("executing script")
}

/// Returns the variables that earlier scripts of the job wrote to the file `GITLAB_ENV`, which is
/// in the directory `RUNNER_TEMP_PROJECT_DIR`. Returns no variables if `vars` has no such
/// directory.
fn earlier_variables(vars: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let Some(directory) = vars.get(TEMP_DIR).filter(|path| !path.is_empty()) else {
        return BTreeMap::new();
    };
    let file = GitlabEnv::of(Path::new(directory));
    // No stage wrote variables, or the file is not readable.
    file.variables().unwrap_or_else(|_| file.file_variable())
}

fn lines(inputs: &FunctionInputs) -> Result<Vec<String>, BuiltinError> {
    let Some(ExprValue::Array(items)) = inputs.get("script") else {
        return Err(BuiltinError::Input { name: "script", expected: DeclaredType::Array });
    };
    if items.is_empty() {
        return Err(BuiltinError::EmptyScript);
    }
    let text = |(index, item): (usize, &ExprValue)| match item {
        ExprValue::String(line) => Ok(line.clone()),
        // Unquoted YAML words such as `1` and `true`.
        ExprValue::Number(_) | ExprValue::Bool(_) => Ok(item.to_text()),
        _ => Err(BuiltinError::Line(index)),
    };
    items.iter().enumerate().map(text).collect()
}

fn flag(inputs: &FunctionInputs, name: &'static str) -> Result<bool, BuiltinError> {
    match inputs.get(name) {
        None => Ok(false),
        Some(ExprValue::Bool(flag)) => Ok(*flag),
        Some(_) => Err(BuiltinError::Input { name, expected: DeclaredType::Boolean }),
    }
}
