//! What a script step executes, as the first process of a job's container is asked for it.

use std::path::Path;

use super::error::HookError;
use super::request::ScriptStep;
use super::words;
use crate::bundle::checked_cwd;
use crate::container::ContainerError;
use crate::sys::init::frames::Step;

/// Returns the frame that asks for a step.
///
/// # Errors
///
/// Fails if the words or the working directory of the step are none.
pub(super) fn frame(step: &ScriptStep) -> Result<Step, HookError> {
    let bytes = |text: &String| text.clone().into_bytes();
    let cwd = step.working_directory.as_deref().map(Path::new).map(checked_cwd);
    let cwd = cwd.transpose().map_err(ContainerError::from)?;
    Ok(Step {
        args: words_of(step)?.into_iter().map(String::into_bytes).collect(),
        env: step.environment.0.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        prepend_path: step.prepend_path.iter().map(bytes).collect(),
        directory: cwd.unwrap_or_default().into_os_string().into_encoded_bytes(),
        ..Step::default()
    })
}

/// Returns the program of a step and its arguments.
pub(super) fn words_of(step: &ScriptStep) -> Result<Vec<String>, HookError> {
    let mut words = vec![step.entry_point.clone()];
    words.extend(words::rejoin(&step.entry_point_args)?);
    Ok(words)
}
