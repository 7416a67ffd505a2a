//! `run_script_step`: a program in the job container.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::error::HookError;
use super::hook::{Hook, Outcome};
use super::request::ScriptStep;
use super::state::State;
use super::words;
use crate::bundle::ExecOptions;
use crate::container::ContainerError;

pub(super) fn run(
    hook: &Hook<'_>,
    step: &ScriptStep,
    state: Option<&Map<String, Value>>,
) -> Result<Outcome, HookError> {
    let id = State::read(state).and_then(|state| state.container).ok_or(HookError::NoState)?;
    // The id comes back from the runner, through whose memory it went; it names a directory.
    if !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(HookError::NoState);
    }
    let record = match hook.engine.directory(&id).read() {
        Err(_) => return Err(ContainerError::Unknown { id }.into()),
        Ok(record) if record.owner != hook.runner.owner() => return Err(HookError::Foreign { id }),
        Ok(record) => record,
    };
    let mut args = vec![step.entry_point.clone()];
    args.extend(words::rejoin(&step.entry_point_args)?);
    let options = ExecOptions {
        args,
        env: step.environment.0.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        prepend_path: step.prepend_path.clone(),
        cwd: step.working_directory.as_ref().map(PathBuf::from),
        ..ExecOptions::default()
    };
    Ok(Outcome::Become(hook.engine.exec(&record, &options)?))
}
