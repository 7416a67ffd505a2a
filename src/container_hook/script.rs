//! What a script step executes, as the first process of a job's container is asked for it.

use std::path::PathBuf;

use super::error::HookError;
use super::request::ScriptStep;
use super::words;
use crate::sys::init::frames::Step;

/// Returns the frame that asks for a step in a directory.
///
/// # Errors
///
/// Fails if the words of the step are none.
pub fn frame(step: &ScriptStep, directory: PathBuf) -> Result<Step, HookError> {
    let bytes = |text: &String| text.clone().into_bytes();
    Ok(Step {
        args: words_of(step)?.into_iter().map(String::into_bytes).collect(),
        env: step.environment.0.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        prepend_path: step.prepend_path.iter().map(bytes).collect(),
        directory: directory.into_os_string().into_encoded_bytes(),
        ..Step::default()
    })
}

/// Returns the program of a step and its arguments.
pub fn words_of(step: &ScriptStep) -> Result<Vec<String>, HookError> {
    let mut words = vec![step.entry_point.clone()];
    words.extend(words::rejoin(&step.entry_point_args)?);
    Ok(words)
}
