//! A call of a function that builds or publishes an image, with its context from the job.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use super::super::ExprValue;
use super::super::log::LogStream;
use super::super::resolve::{Interrupt, ReferenceContext, RemoteAccess};
use super::build::build;
use super::error::FunctionError;
use super::publish::publish;

/// The outputs of a function by name.
pub type FunctionOutputs = BTreeMap<String, ExprValue>;

/// A callback that writes a line, given without its line end, to the log of the step.
pub type FunctionLog<'a> = &'a (dyn Fn(LogStream, &str) + Sync);

/// A built-in function for images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OciFunction {
    /// Builds an image: `builtin://function/oci/build`.
    Build,
    /// Pushes an image to a registry: `builtin://function/oci/publish`.
    Publish,
}

/// A call of an [`OciFunction`] by a job.
#[derive(Clone)]
pub struct FunctionCall {
    pub function: OciFunction,
    pub inputs: BTreeMap<String, ExprValue>,
    /// Absolute path of the job's directory, to which paths in the inputs are relative.
    pub work_dir: PathBuf,
    /// Variables of the CI job, from which credentials for registries are read.
    pub vars: BTreeMap<String, String>,
    pub env: BTreeMap<String, String>,
    /// Cache and registry client; required to publish.
    pub remote: Option<Arc<RemoteAccess>>,
}

/// A running [`FunctionCall`], with its interrupt and its log.
pub struct FunctionTask<'a> {
    pub call: &'a FunctionCall,
    interrupt: &'a Interrupt,
    log: FunctionLog<'a>,
}

impl FunctionCall {
    /// Runs the function. Returns its outputs by name.
    ///
    /// May take a minute to return after the interrupt is set, if a registry does not respond; a
    /// caller that cannot wait abandons the thread.
    ///
    /// # Errors
    ///
    /// Fails with the error of the function, or with [`FunctionError::Cancelled`] once the
    /// interrupt is set.
    pub fn run(
        &self,
        interrupt: &Interrupt,
        log: FunctionLog<'_>,
    ) -> Result<FunctionOutputs, FunctionError> {
        let task = FunctionTask { call: self, interrupt, log };
        match self.function {
            OciFunction::Build => build(&task),
            OciFunction::Publish => publish(&task),
        }
    }
}

impl FunctionTask<'_> {
    /// Returns the context in which credentials for registries are looked up.
    pub(super) fn caller(&self) -> ReferenceContext<'_> {
        let FunctionCall { work_dir, vars, env, .. } = self.call;
        ReferenceContext { dir: work_dir, tree: None, vars, env, interrupt: self.interrupt }
    }

    /// Writes a line to the log.
    pub(super) fn print(&self, stream: LogStream, line: &str) {
        (self.log)(stream, line);
    }

    /// Writes a progress line to the log.
    pub(super) fn log_progress(&self, line: &str) {
        self.print(LogStream::Out, line);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.interrupt.is_set()
    }

    /// Returns a reader that fails when the job is cancelled.
    pub(super) fn guard<'a, R: Read + 'a>(&'a self, reader: R) -> impl Read + 'a {
        CancellableReader { reader, task: self }
    }
}

/// A reader that fails when the job is cancelled.
struct CancellableReader<'a, R> {
    reader: R,
    task: &'a FunctionTask<'a>,
}

impl<R: Read> Read for CancellableReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.task.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        self.reader.read(buffer)
    }
}
