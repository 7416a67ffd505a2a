//! An agent that runs without a container, with pipes to its `call` processes as streams.

use std::cell::{Cell, RefCell};
use std::fs;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::Duration;

use oci_hooks_init::PROGRAM;
use oci_hooks_testsupport::init::{children, install_in, status};
use oci_hooks_testsupport::program::{DEADLINE, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::{AgentLink, LinkFuture, LinkOpener};

/// A running agent, killed on drop.
pub struct TestAgent {
    directory: tempfile::TempDir,
    program: PathBuf,
    serve: Child,
    calls: RefCell<Vec<Child>>,
    /// If set, streams can be opened.
    is_reachable: Cell<bool>,
    /// Number of bytes in each direction after which the next streams break, the last entry first.
    pub breaks: RefCell<Vec<(usize, usize)>>,
}

impl TestAgent {
    pub(crate) fn start() -> Self {
        TestAgent::start_with(&[])
    }

    /// Starts an agent with options before its directory argument.
    pub fn start_with(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("agent");
        fs::rename(install_in(directory.path(), PROGRAM), &program).unwrap();
        let run = directory.path().join("run");
        fs::create_dir(&run).unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut serve = Command::new(&program);
        serve.arg("serve").args(options).arg(&run);
        let serve = serve.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let serve = serve.spawn().unwrap();
        let (calls, is_reachable, breaks) =
            (RefCell::default(), Cell::new(true), RefCell::default());
        let agent = TestAgent { directory, program, serve, calls, is_reachable, breaks };
        let socket = agent.run_directory().join("agent/socket");
        wait_until("it listens", || socket.exists());
        agent
    }

    /// Returns a directory that is visible to steps too.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn run_directory(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// Kills the `call` processes of all open streams.
    pub fn cut_streams(&self) {
        for mut call in self.calls.take() {
            let _ = call.kill();
            let _ = call.wait();
        }
    }

    /// Sends a signal to the `call` processes of all open streams.
    pub fn signal_calls(&self, signal: Signal) {
        for call in &*self.calls.borrow() {
            kill_process(Pid::from_child(call), signal).unwrap();
        }
    }

    /// Sets whether streams can be opened.
    pub fn set_reachable(&self, is_reachable: bool) {
        self.is_reachable.set(is_reachable);
    }

    /// Returns the children of the agent: the supervisors of steps.
    pub fn children(&self) -> Vec<i32> {
        children(self.serve.id().cast_signed())
    }

    /// Returns the peak memory of the largest living process, in kB.
    pub fn peak_memory(&self) -> u64 {
        let calls = self.calls.borrow();
        let calls = calls.iter().map(|call| call.id().cast_signed());
        let all = self.children().into_iter().chain(calls).chain([self.serve.id().cast_signed()]);
        let peak = |pid| status(pid, "VmHWM").trim_end_matches(" kB").trim().parse().unwrap_or(0);
        all.map(peak).max().unwrap()
    }

    /// Returns the log of the container.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

impl LinkOpener for TestAgent {
    fn open(&self) -> LinkFuture<'_> {
        Box::pin(async move {
            while !self.is_reachable.get() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut call = Command::new(&self.program)
                .arg("call")
                .arg(self.run_directory())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let input = OwnedFd::from(call.stdin.take().unwrap());
            let output = OwnedFd::from(call.stdout.take().unwrap());
            self.calls.borrow_mut().push(call);
            let (there, back) = self.breaks.borrow_mut().pop().unwrap_or((usize::MAX, usize::MAX));
            Ok(AgentLink::new(
                BreakingStream { stream: Sender::from_owned_fd(input)?, left: there },
                BreakingStream { stream: Receiver::from_owned_fd(output)?, left: back },
            ))
        })
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        self.cut_streams();
        let _ = kill_process(Pid::from_child(&self.serve), Signal::TERM);
        let _ = self.serve.wait();
    }
}

/// A stream that breaks after a number of bytes.
struct BreakingStream<S> {
    stream: S,
    left: usize,
}

impl AsyncRead for BreakingStream<Receiver> {
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

impl AsyncWrite for BreakingStream<Sender> {
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

/// Runs a future on a new runtime, with a time limit.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(DEADLINE, future).await.expect("it takes for ever")
    })
}
