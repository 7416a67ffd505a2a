//! The table of functions, and `builtin://script_legacy`, the script of an ordinary job.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::document::Builtin;
use super::super::{Type, Value};
use super::concrete;
use super::error::{BuiltinError, Within as _, benign};
use super::gitlab_env::GitlabEnv;
use super::host::{Command, Host, Inputs, Limits};
use super::script::{ScriptFile, Tracing, find_shell, legacy};

/// Runs a function. Returns its outputs by name.
///
/// # Errors
///
/// Fails if an input is invalid, or with the command that failed.
pub fn run(
    function: Builtin,
    inputs: &Inputs,
    host: &mut dyn Host,
) -> Result<BTreeMap<String, Value>, BuiltinError> {
    match function {
        // The engine runs it as a command: it records what it executed.
        Builtin::Script { .. } => {}
        // The engine runs them on threads of their own: they wait for registries, not for commands.
        Builtin::FunctionOciBuild | Builtin::FunctionOciPublish => {}
        Builtin::ScriptLegacy => script_legacy(inputs, host)?,
        Builtin::Concrete => concrete::run(inputs, host)?,
    }
    Ok(BTreeMap::new())
}

/// Variable with the directory for temporary files of a project.
const TEMP_DIR: &str = "RUNNER_TEMP_PROJECT_DIR";

/// Runs the function.
fn script_legacy(inputs: &Inputs, host: &mut dyn Host) -> Result<(), BuiltinError> {
    let lines = lines(inputs)?;
    let tracing = Tracing {
        xtrace: flag(inputs, "debug_trace")?,
        check: flag(inputs, "check_for_errors")?,
        sections: flag(inputs, "trace_sections")?,
    };
    // It chooses between two ways of quoting, and every shell reads the one that is used here.
    flag(inputs, "posix_escape")?;
    let path = host.env().get("PATH").map_or("", String::as_str);
    let shell = find_shell(host.work_dir(), path)?.to_string_lossy().into_owned();
    let mut env = host.env().clone();
    env.extend(host.vars().clone());
    env.extend(earlier_variables(host.vars()));
    let file = ScriptFile::new(host.scratch(), &legacy(&shell, &lines, tracing))?;
    let argv = [shell, file.path().to_string_lossy().into_owned()];
    let work_dir = host.work_dir().to_owned();
    let command = Command { argv: &argv, work_dir: &work_dir, env: &env, output: None };
    benign(host.run(&command, &Limits::default())).within("executing script")
}

/// Returns the variables that the scripts of earlier stages set.
fn earlier_variables(vars: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let Some(directory) = vars.get(TEMP_DIR).filter(|path| !path.is_empty()) else {
        return BTreeMap::new();
    };
    let file = GitlabEnv::of(Path::new(directory));
    // No stage wrote any, or something that is not for reading.
    file.variables().unwrap_or_else(|_| file.own())
}

fn lines(inputs: &Inputs) -> Result<Vec<String>, BuiltinError> {
    let Some(Value::Array(items)) = inputs.get("script") else {
        return Err(BuiltinError::Input { name: "script", expected: Type::Array });
    };
    if items.is_empty() {
        return Err(BuiltinError::EmptyScript);
    }
    let text = |(index, item): (usize, &Value)| match item {
        Value::String(line) => Ok(line.clone()),
        // As YAML has unquoted words.
        Value::Number(_) | Value::Bool(_) => Ok(item.to_text()),
        _ => Err(BuiltinError::Line(index)),
    };
    items.iter().enumerate().map(text).collect()
}

fn flag(inputs: &Inputs, name: &'static str) -> Result<bool, BuiltinError> {
    match inputs.get(name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(BuiltinError::Input { name, expected: Type::Boolean }),
    }
}
