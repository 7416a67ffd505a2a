//! The runner's request: one JSON document on standard input.
//!
//! Parsed tolerantly, because runners of different versions send it: absent and null fields are the same,
//! unknown fields are ignored, and the names in ADR 1891 are aliases of the names that runners really send.
//! Values must have the right type; errors have the JSON pointer and never repeat a value, which may be a
//! secret.

use std::fmt;
use std::path::PathBuf;

use node::RequestNode;
use serde_json::{Map, Value};

mod args;
mod node;
#[cfg(test)]
mod tests;

pub use args::{
    ContainerArgs, ImageSource, PrepareJob, RegistryLogin, RequestEnvironment, RequestMount,
    ScriptStep,
};

/// A request of the runner.
#[derive(Clone, Debug, PartialEq)]
pub struct HookRequest {
    pub command: HookCommand,
    /// Absolute path of the response file; always set for `prepare_job`.
    pub response_file: Option<PathBuf>,
    /// The `state` from the response to the job's `prepare_job`.
    pub state: Option<Map<String, Value>>,
}

/// A command of the runner.
#[derive(Clone, Debug, PartialEq)]
pub enum HookCommand {
    /// Start the job's container and services.
    PrepareJob(PrepareJob),
    /// Run a program in the job's container.
    RunScriptStep(ScriptStep),
    RunContainerStep(ContainerArgs),
    /// Remove the job's containers, networks and files.
    CleanupJob,
}

/// Errors of reading a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("standard input is empty: expected a request of GitHub's runner")]
    Empty,
    #[error("the request is not JSON")]
    Json(#[from] serde_json::Error),
    #[error("request: {}: {problem}", if pointer.is_empty() { "the document" } else { pointer })]
    Field {
        /// JSON pointer to the field, empty for the document.
        pointer: String,
        problem: String,
    },
}

impl HookCommand {
    /// Returns the command's name in the protocol.
    pub fn name(&self) -> &'static str {
        match self {
            HookCommand::PrepareJob(_) => "prepare_job",
            HookCommand::RunScriptStep(_) => "run_script_step",
            HookCommand::RunContainerStep(_) => "run_container_step",
            HookCommand::CleanupJob => "cleanup_job",
        }
    }
}

impl HookRequest {
    /// Reads a request. If a key occurs twice, the last value counts.
    pub fn parse(json: &[u8]) -> Result<Self, RequestError> {
        if json.trim_ascii().is_empty() {
            return Err(RequestError::Empty);
        }
        let document: Value = serde_json::from_slice(json)?;
        let root = RequestNode::root(&document);
        let command = command(&root)?;

        let response_file = root.field("responseFile")?;
        let path = response_file.non_empty_text()?.map(PathBuf::from);
        match &path {
            // Without a response, the runner fails the job.
            None if matches!(command, HookCommand::PrepareJob(_)) => {
                return Err(response_file.error("prepare_job needs the path of a file"));
            }
            Some(path) if path.is_relative() => {
                return Err(response_file.error("must be an absolute path"));
            }
            _ => {}
        }
        let state = root.field("state")?.object()?.cloned();
        Ok(HookRequest { command, response_file: path, state })
    }
}

fn command(root: &RequestNode<'_>) -> Result<HookCommand, RequestError> {
    let name = root.field("command")?;
    let args = root.field("args")?;
    match name.required_text()?.as_str() {
        // A job without containers has no response, and the runner needs one.
        "prepare_job" if args.is_absent() => {
            Err(args.error("prepare_job needs an object with `container` or `services`"))
        }
        "prepare_job" => PrepareJob::read(&args).map(HookCommand::PrepareJob),
        "run_script_step" => ScriptStep::read(&args).map(HookCommand::RunScriptStep),
        "run_container_step" => ContainerArgs::read(&args).map(HookCommand::RunContainerStep),
        "cleanup_job" => Ok(HookCommand::CleanupJob),
        _ => Err(name.error(
            "must be prepare_job, run_script_step, run_container_step or cleanup_job; \
             is the runner newer than this program?",
        )),
    }
}

/// A password or another text that must not appear in messages, logs or debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl SecretText {
    /// Wraps a secret text.
    pub fn new(text: impl Into<String>) -> Self {
        SecretText(text.into())
    }

    /// Returns the secret text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
