//! The program of a script step, as a message (frame) to the init process of the job container.

use std::path::PathBuf;

use oci_hooks_init::frames::ContainerStep;

use super::error::HookError;
use super::request::ScriptStep;
use super::words;

/// Returns the message that makes the init process start a step in a directory.
///
/// # Errors
///
/// Fails if the arguments of the step cannot be split into words.
pub fn frame(step: &ScriptStep, directory: PathBuf) -> Result<ContainerStep, HookError> {
    let bytes = |text: &String| text.clone().into_bytes();
    Ok(ContainerStep {
        args: step_words(step)?.into_iter().map(String::into_bytes).collect(),
        env: step.environment.0.iter().map(|(name, value)| (bytes(name), bytes(value))).collect(),
        prepend_path: step.prepend_path.iter().map(bytes).collect(),
        directory: directory.into_os_string().into_encoded_bytes(),
        ..ContainerStep::default()
    })
}

/// Returns the program of a step and its arguments.
pub fn step_words(step: &ScriptStep) -> Result<Vec<String>, HookError> {
    let mut words = vec![step.entry_point.clone()];
    words.extend(words::rejoin(&step.entry_point_args)?);
    Ok(words)
}
