//! A call of a function, and what it needs of the job.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::Value;
use super::super::log::Stream;
use super::super::resolve::{Caller, Interrupt, Remote};
use super::build::build;
use super::error::FunctionError;
use super::publish::publish;

/// The outputs of a function by name.
pub type Outputs = BTreeMap<String, Value>;

/// Writes the lines of a function's log, without line ends.
pub type Log<'a> = &'a (dyn Fn(Stream, &str) + Sync);

/// One of the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `builtin://function/oci/build`
    Build,
    /// `builtin://function/oci/publish`
    Publish,
}

/// A call of a function by a job.
#[derive(Clone)]
pub struct Call {
    pub function: Function,
    pub inputs: BTreeMap<String, Value>,
    /// Absolute path of the job's directory, which paths in the inputs are relative to.
    pub work_dir: PathBuf,
    /// Variables of the CI job; those for registries are used.
    pub vars: BTreeMap<String, String>,
    pub env: BTreeMap<String, String>,
    /// How registries are reached; needed to publish.
    pub remote: Option<Arc<Remote>>,
}

/// A call that runs.
pub struct Task<'a> {
    call: &'a Call,
    interrupt: &'a Interrupt,
    log: Log<'a>,
}

impl Call {
    /// Runs the function. Returns its outputs by name.
    ///
    /// A registry that is silent may keep it for a minute after the interrupt is set: whoever cannot wait
    /// leaves its thread alone.
    ///
    /// # Errors
    ///
    /// Besides its own errors, [`FunctionError::Cancelled`] when the interrupt is set.
    pub fn run(&self, interrupt: &Interrupt, log: Log<'_>) -> Result<Outputs, FunctionError> {
        let task = Task { call: self, interrupt, log };
        match self.function {
            Function::Build => build(&task),
            Function::Publish => publish(&task),
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Variables and the environment have secrets.
        f.debug_struct("Call").field("function", &self.function).finish_non_exhaustive()
    }
}

impl Task<'_> {
    pub(super) fn inputs(&self) -> &BTreeMap<String, Value> {
        &self.call.inputs
    }

    pub(super) fn work_dir(&self) -> &Path {
        &self.call.work_dir
    }

    pub(super) fn remote(&self) -> Option<&Remote> {
        self.call.remote.as_deref()
    }

    /// Returns whose variables have the logins.
    pub(super) fn caller(&self) -> Caller<'_> {
        let Call { work_dir, vars, env, .. } = self.call;
        Caller { dir: work_dir, tree: None, vars, env, interrupt: self.interrupt }
    }

    /// Writes a line of the log.
    pub(super) fn print(&self, stream: Stream, line: &str) {
        (self.log)(stream, line);
    }

    /// Writes a line about what was done.
    pub(super) fn say(&self, line: &str) {
        self.print(Stream::Out, line);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.interrupt.is_set()
    }

    /// Returns a reader that fails when the job is cancelled.
    pub(super) fn guard<'a, R: Read + 'a>(&'a self, reader: R) -> impl Read + 'a {
        Guarded { reader, task: self }
    }
}

/// A reader that fails when the job is cancelled.
struct Guarded<'a, R> {
    reader: R,
    task: &'a Task<'a>,
}

impl<R: Read> Read for Guarded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.task.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        self.reader.read(buffer)
    }
}
