//! Agents as processes, behind streams that break on demand.

use std::cell::RefCell;
use std::error::Error;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};

use oci_hooks_testsupport::init::install;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::agent::{AgentLink, LinkOpener};

/// Runs a test on a current-thread runtime, like the hook.
pub fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// An agent whose streams are `call` processes.
pub struct AgentProcess {
    _dir: tempfile::TempDir,
    program: PathBuf,
    state: tempfile::TempDir,
    /// Number of bytes in each direction after which the next streams break, the last entry first.
    pub breaks: RefCell<Vec<(usize, usize)>>,
    /// Process of the last stream.
    pub child: RefCell<Option<Child>>,
}

impl AgentProcess {
    pub(super) fn new() -> Self {
        let (dir, program) = install(oci_hooks_init::PROGRAM);
        let state = tempfile::tempdir().unwrap();
        AgentProcess {
            _dir: dir,
            program,
            state,
            breaks: RefCell::default(),
            child: RefCell::default(),
        }
    }

    /// Returns the peak memory of the last agent, in KiB.
    pub fn peak_kib(&self) -> u64 {
        let id = self.child.borrow().as_ref().unwrap().id().unwrap();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl LinkOpener for AgentProcess {
    fn open(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<AgentLink, Box<dyn Error + Send + Sync>>> + '_>> {
        Box::pin(async {
            let mut child = Command::new(&self.program)
                .arg0("agent")
                .arg("call")
                .arg(self.state.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            *self.child.borrow_mut() = Some(child);
            let (there, back) = self.breaks.borrow_mut().pop().unwrap_or((usize::MAX, usize::MAX));
            Ok(AgentLink::new(
                BreakingStream { stream: input, left: there },
                BreakingStream { stream: output, left: back },
            ))
        })
    }
}

/// A stream that breaks after a number of bytes.
struct BreakingStream<S> {
    stream: S,
    left: usize,
}

impl AsyncRead for BreakingStream<ChildStdout> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let mut part = buffer.take(self.left);
        let result = Pin::new(&mut self.stream).poll_read(context, &mut part);
        let count = part.filled().len();
        let bytes = part.filled().to_vec();
        self.left -= count;
        buffer.put_slice(&bytes);
        result
    }
}

impl AsyncWrite for BreakingStream<ChildStdin> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let length = bytes.len().min(self.left);
        let result = Pin::new(&mut self.stream).poll_write(context, &bytes[..length]);
        if let Poll::Ready(Ok(count)) = &result {
            self.left -= count;
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
