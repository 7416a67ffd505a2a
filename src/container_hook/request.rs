//! The runner's request: one JSON document on standard input.
//!
//! Read tolerantly, because runners of different ages send it: absent and null are the same, fields
//! that are not known are passed over, the names of ADR 1891 stand for those that runners really
//! send. What is there must have the right type; errors say where by JSON pointer and never repeat
//! a value, which may be a secret.

use std::fmt;
use std::path::PathBuf;

use node::Node;
use serde_json::{Map, Value};

mod args;
mod node;
#[cfg(test)]
mod tests;

pub use args::{ContainerArgs, Environment, ImageSource, Mount, PrepareJob, Registry, ScriptStep};

/// What the runner asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The command and its arguments.
    pub command: Command,
    /// Where to write the response; never none for `prepare_job`.
    pub response_file: Option<PathBuf>,
    /// What an earlier response of the same job gave as `state`.
    pub state: Option<Map<String, Value>>,
}

/// A command of the runner.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Start the job's container and services.
    PrepareJob(PrepareJob),
    /// Run a program in the job's container.
    RunScriptStep(ScriptStep),
    RunContainerStep(ContainerArgs),
    /// Remove everything of the job.
    CleanupJob,
}

/// Why a request cannot be carried out as it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is nothing on standard input.
    #[error("standard input is empty: expected a request of GitHub's runner")]
    Empty,
    /// The request is not JSON.
    #[error("the request is not JSON")]
    Json(#[from] serde_json::Error),
    /// A field of the request is wrong.
    #[error("request: {}: {problem}", if pointer.is_empty() { "the document" } else { pointer })]
    Field {
        /// The JSON pointer to the field, empty for the document.
        pointer: String,
        /// What is wrong and what belongs there.
        problem: String,
    },
}

impl Command {
    /// Returns the command's name in the protocol.
    pub fn name(&self) -> &'static str {
        match self {
            Command::PrepareJob(_) => "prepare_job",
            Command::RunScriptStep(_) => "run_script_step",
            Command::RunContainerStep(_) => "run_container_step",
            Command::CleanupJob => "cleanup_job",
        }
    }
}

impl Request {
    /// Reads a request. Of a key that occurs twice, the last counts.
    pub fn parse(json: &[u8]) -> Result<Self, RequestError> {
        if json.trim_ascii().is_empty() {
            return Err(RequestError::Empty);
        }
        let document: Value = serde_json::from_slice(json)?;
        let root = Node::root(&document);
        let command = command(&root)?;

        let response_file = root.field("responseFile")?;
        let path = response_file.non_empty_text()?.map(PathBuf::from);
        match &path {
            // Its answer is the point of it: without one the runner fails the job.
            None if matches!(command, Command::PrepareJob(_)) => {
                return Err(response_file.error("prepare_job needs the path of a file"));
            }
            Some(path) if path.is_relative() => {
                return Err(response_file.error("must be an absolute path"));
            }
            _ => {}
        }
        let state = root.field("state")?.object()?.cloned();
        Ok(Request { command, response_file: path, state })
    }
}

fn command(root: &Node<'_>) -> Result<Command, RequestError> {
    let name = root.field("command")?;
    let args = root.field("args")?;
    match name.required_text()?.as_str() {
        // Without containers there is no answer, which the runner cannot do without.
        "prepare_job" if args.is_absent() => {
            Err(args.error("prepare_job needs an object with `container` or `services`"))
        }
        "prepare_job" => PrepareJob::read(&args).map(Command::PrepareJob),
        "run_script_step" => ScriptStep::read(&args).map(Command::RunScriptStep),
        "run_container_step" => ContainerArgs::read(&args).map(Command::RunContainerStep),
        "cleanup_job" => Ok(Command::CleanupJob),
        _ => Err(name.error(
            "must be prepare_job, run_script_step, run_container_step or cleanup_job; \
             is the runner newer than this program?",
        )),
    }
}

/// A password or another text that no message, log or debug output may hold.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a text to be kept secret.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// Returns the text, to hand it on to what needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
