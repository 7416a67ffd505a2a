//! `run_script_step`: a program in the job container.

use std::path::PathBuf;
use std::process::Command;

use super::backend::EngineBackend;
use crate::bundle::ExecOptions;
use crate::container::ContainerError;
use crate::container_hook::error::HookError;
use crate::container_hook::request::ScriptStep;
use crate::container_hook::state::JobState;
use crate::container_hook::words;

pub(super) fn run(
    backend: &EngineBackend<'_>,
    step: &ScriptStep,
    state: Option<&JobState>,
) -> Result<Command, HookError> {
    let id = state.and_then(|state| state.container.clone()).ok_or(HookError::NoState)?;
    // The id comes back from the runner, through whose memory it went; it names a directory.
    if !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(HookError::NoState);
    }
    let record = match backend.engine.directory(&id).read() {
        Err(_) => return Err(ContainerError::Unknown { id }.into()),
        Ok(record) if record.owner != backend.context.runner.owner() => {
            return Err(HookError::Foreign { id });
        }
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
    Ok(backend.engine.exec(&record, &options)?)
}
