//! Running a function in a thread of its own, which a job that is cancelled does not wait for: a registry may
//! be silent for long.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::super::Value;
use super::super::log::Stream;
use super::super::resolve::{Caller, Interrupt, Remote};
use super::build::build;
use super::error::FunctionError;
use super::publish::publish;

/// How often the job is asked whether it is cancelled.
const POLL: Duration = Duration::from_millis(50);

/// How long a cancelled function has to remove what it made.
const CLEANUP: Duration = Duration::from_secs(1);

/// The outputs of a function by name.
pub(super) type Outputs = BTreeMap<String, Value>;

/// One of the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `builtin://function/oci/build`
    Build,
    /// `builtin://function/oci/publish`
    Publish,
}

/// A call of a function by a job.
#[derive(Clone, Debug)]
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

/// What a function in its thread knows of the job.
pub(super) struct Task {
    call: Call,
    events: Sender<Event>,
    interrupt: Interrupt,
}

enum Event {
    /// A line for the log.
    Line(Stream, String),
    Ended(Result<Outputs, FunctionError>),
}

/// Runs a function. `print` gets the lines of its log, with line ends.
///
/// # Errors
///
/// Besides its own errors, [`FunctionError::Cancelled`] soon after `is_cancelled` returns true.
pub fn run(
    call: Call,
    print: &mut dyn FnMut(Stream, &str),
    is_cancelled: &mut dyn FnMut() -> bool,
) -> Result<BTreeMap<String, Value>, FunctionError> {
    let (events, received) = mpsc::channel();
    let interrupt = Interrupt::new().map_err(FunctionError::Thread)?;
    let task = Task { call, events, interrupt: interrupt.clone() };
    let work = move || {
        let result = match task.call.function {
            Function::Build => build(&task),
            Function::Publish => publish(&task),
        };
        // Nobody listens if the job was cancelled.
        let _ = task.events.send(Event::Ended(result));
    };
    thread::Builder::new()
        .name("function".to_owned())
        .spawn(work)
        .map_err(FunctionError::Thread)?;
    let mut ends = None;
    loop {
        match received.recv_timeout(POLL) {
            Ok(Event::Line(stream, line)) => print(stream, &line),
            Ok(Event::Ended(Err(_))) if ends.is_some() => return Err(FunctionError::Cancelled),
            Ok(Event::Ended(result)) => return result,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(FunctionError::Thread(io::Error::other("its thread panicked")));
            }
        }
        if ends.is_none() && is_cancelled() {
            interrupt.set();
            ends = Some(Instant::now() + CLEANUP);
        }
        if ends.is_some_and(|ends| ends <= Instant::now()) {
            return Err(FunctionError::Cancelled);
        }
    }
}

impl Task {
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
        let Call { work_dir, vars, env, .. } = &self.call;
        Caller { dir: work_dir, vars, env, interrupt: &self.interrupt }
    }

    /// Writes a line of the log.
    pub(super) fn print(&self, stream: Stream, line: &str) {
        let _ = self.events.send(Event::Line(stream, format!("{line}\n")));
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
        Cancellable { reader, task: self }
    }
}

/// A reader that fails when the job is cancelled.
struct Cancellable<'a, R> {
    reader: R,
    task: &'a Task,
}

impl<R: Read> Read for Cancellable<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.task.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        self.reader.read(buffer)
    }
}
