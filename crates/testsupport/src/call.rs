//! One call of the hook as the runner makes it: its output with times, its exit status, and whether a process
//! keeps its pipes open.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use super::host::TestHost;
use super::kills::{PlannedKill, SignalTarget};
use super::program::DEADLINE;

/// Time after the hook's exit for its pipes to be closed. The runner waits five seconds, but a machine that
/// runs tests may be busy.
const CLOSED: Duration = Duration::from_secs(60);

/// Stream that a line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStream {
    Out,
    Err,
}

/// A line of output of the hook.
#[derive(Clone, Debug)]
pub struct OutputLine {
    pub stream: CallStream,
    /// Time since the start of the call.
    pub at: Duration,
    pub text: String,
}

enum CallEvent {
    Line(CallStream, String),
    Closed,
    Exited(ExitStatus),
}

/// A running hook.
pub struct RunningCall {
    pid: Pid,
    events: Receiver<CallEvent>,
    started: Instant,
    lines: Vec<OutputLine>,
    closed: usize,
    status: Option<(ExitStatus, Instant)>,
    response: Option<PathBuf>,
}

impl RunningCall {
    /// Starts the hook with a request on standard input. The response is read from a file.
    pub fn start(
        host: &TestHost,
        command: Command,
        request: Vec<u8>,
        response: Option<PathBuf>,
    ) -> Self {
        Self::start_by(|command| host.spawn(command), command, request, response)
    }

    /// Starts the hook with a spawn function.
    pub fn start_by(
        spawn: impl FnOnce(&mut Command) -> Child,
        mut command: Command,
        request: Vec<u8>,
        response: Option<PathBuf>,
    ) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let started = Instant::now();
        let mut child = spawn(&mut command);
        let pid = Pid::from_child(&child);
        // The runner raises the OOM score adjustment of its children.
        let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), "500");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        let (sender, events) = mpsc::channel();
        let out = child.stdout.take().expect("it is a pipe");
        let err = child.stderr.take().expect("it is a pipe");
        read(sender.clone(), CallStream::Out, out);
        read(sender.clone(), CallStream::Err, err);
        thread::spawn(move || {
            // The hook may exit without reading.
            let _ = stdin.write_all(&request);
        });
        thread::spawn(move || {
            let status = child.wait().expect("a child can be waited for once");
            // The test may have ended.
            let _ = sender.send(CallEvent::Exited(status));
        });
        Self { pid, events, started, lines: Vec::new(), closed: 0, status: None, response }
    }

    /// Waits for a line that contains a text.
    #[track_caller]
    pub fn wait_for_line(&mut self, text: &str) -> &mut Self {
        let deadline = Instant::now() + DEADLINE;
        while !self.lines.iter().any(|line| line.text.contains(text)) {
            let progress = self.next(deadline);
            assert!(progress && self.closed < 2, "no line with {text:?}: {:#?}", self.lines);
        }
        self
    }

    /// Returns the process id of the hook.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Sends a signal to the hook, not to its process group.
    pub fn signal(&mut self, signal: Signal) {
        // Pending events first: after the hook's exit its process id may be reused.
        while self.next(Instant::now()) {}
        if self.status.is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Sends a signal to the hook or to its process group.
    pub fn signal_to(&mut self, whom: SignalTarget, signal: Signal) {
        while self.next(Instant::now()) {}
        match whom {
            SignalTarget::Program => self.signal(signal),
            SignalTarget::Group if self.status.is_none() => {
                let _ = kill_process_group(self.pid, signal);
            }
            SignalTarget::Group => {}
        }
    }

    /// Sends `SIGINT`, as the runner does at first to cancel a step, and waits for the end.
    #[track_caller]
    pub fn interrupt(mut self) -> EndedCall {
        self.signal(Signal::INT);
        self.wait()
    }

    /// Cancels the step as the runner does, and returns the number of signals needed.
    #[track_caller]
    pub fn cancel(mut self) -> (EndedCall, usize) {
        let mut signals = 0;
        // The runner waits 2.5 s after SIGTERM; a machine that runs tests may be busy.
        for (signal, patience) in [
            (Signal::INT, Duration::from_millis(7500)),
            (Signal::TERM, DEADLINE),
            (Signal::KILL, DEADLINE),
        ] {
            self.signal(signal);
            signals += 1;
            let deadline = Instant::now() + patience;
            while self.status.is_none() && self.next(deadline) {}
            if self.status.is_some() {
                break;
            }
        }
        (self.wait(), signals)
    }

    /// Kills the hook, not its process group, after a delay, and waits for its exit. Its children may live on
    /// and keep its pipes open.
    #[track_caller]
    pub fn kill_after(mut self, delay: Duration) {
        self.pass(delay);
        self.signal(Signal::KILL);
        self.wait_for_death();
    }

    /// Kills the hook or its process group, and waits for the hook's exit.
    #[track_caller]
    pub fn kill(mut self, kill: &PlannedKill) {
        self.pass(kill.after);
        match kill.whom {
            SignalTarget::Program => self.signal(Signal::KILL),
            // Processes of the group may outlive the hook.
            SignalTarget::Group => drop(kill_process_group(self.pid, Signal::KILL)),
        }
        self.wait_for_death();
        if let Some(path) = &self.response {
            let _ = fs::remove_file(path);
        }
    }

    /// Waits until a delay has passed or the hook has exited.
    pub fn pass(&mut self, delay: Duration) {
        let deadline = Instant::now() + delay;
        while self.status.is_none() && self.next(deadline) {}
    }

    #[track_caller]
    fn wait_for_death(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        while self.status.is_none() {
            assert!(self.next(deadline), "a killed process ends");
        }
    }

    /// Waits for the hook's exit and then, for a limited time like the runner, for its pipes to be closed.
    #[track_caller]
    pub fn wait(mut self) -> EndedCall {
        // The call may have been stopped for a long time before.
        let deadline = (self.started + DEADLINE * 2).max(Instant::now() + DEADLINE);
        while self.status.is_none() {
            if !self.next(deadline) {
                let _ = kill_process(self.pid, Signal::KILL);
                panic!("the hook does not end; it wrote {:#?}", self.lines);
            }
        }
        let (status, exited) = self.status.expect("the loop ends with one");
        while self.closed < 2 && self.next(exited + CLOSED) {}
        let pipes_held = (self.closed < 2).then(|| exited.elapsed());
        let response = self.response.as_ref().filter(|_| status.success()).and_then(|path| {
            let text = fs::read_to_string(path).expect("the response file stays");
            (!text.trim().is_empty())
                .then(|| serde_json::from_str(&text).expect("the response is JSON"))
        });
        if let Some(path) = &self.response {
            let _ = fs::remove_file(path);
        }
        EndedCall { status, lines: self.lines, pipes_held, response, took: exited - self.started }
    }

    /// Processes the next event. Returns whether there was one before the deadline.
    fn next(&mut self, deadline: Instant) -> bool {
        let event = self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        match event {
            Ok(CallEvent::Line(stream, text)) => {
                self.lines.push(OutputLine { stream, at: self.started.elapsed(), text });
            }
            Ok(CallEvent::Closed) => self.closed += 1,
            Ok(CallEvent::Exited(status)) => self.status = Some((status, Instant::now())),
            Err(_) => return false,
        }
        true
    }
}

fn read(sender: Sender<CallEvent>, stream: CallStream, pipe: impl Read + Send + 'static) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line);
            let text = text.strip_suffix('\n').unwrap_or(&text).to_owned();
            if sender.send(CallEvent::Line(stream, text)).is_err() {
                return;
            }
            line.clear();
        }
        let _ = sender.send(CallEvent::Closed);
    });
}

/// A hook that has exited.
#[derive(Debug)]
pub struct EndedCall {
    pub status: ExitStatus,
    pub lines: Vec<OutputLine>,
    /// Time that a process kept the pipes open after the hook's exit, or none if they were closed.
    pipes_held: Option<Duration>,
    pub response: Option<Value>,
    pub took: Duration,
}

impl EndedCall {
    /// Checks that the step succeeded, and returns it.
    #[track_caller]
    pub fn success(self) -> Self {
        self.code(0)
    }

    /// Checks the exit code of the step, and that no process keeps the hook's pipes open.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}", self.log());
        assert_eq!(self.pipes_held, None, "something holds the hook's pipes\n{}", self.log());
        self
    }

    /// Checks that the hook failed with a message and without a panic, and returns its output.
    #[track_caller]
    pub fn failure(self) -> String {
        assert!(!self.status.success(), "it succeeded\n{}", self.log());
        assert_eq!(self.pipes_held, None, "something holds the hook's pipes\n{}", self.log());
        let log = self.log();
        assert!(!log.trim().is_empty(), "it failed without a word");
        assert!(!log.contains("panicked at"), "{log}");
        log
    }

    pub fn stdout(&self) -> String {
        self.stream(CallStream::Out)
    }

    pub fn stderr(&self) -> String {
        self.stream(CallStream::Err)
    }

    fn stream(&self, stream: CallStream) -> String {
        let lines = self.lines.iter().filter(|line| line.stream == stream);
        lines.map(|line| format!("{}\n", line.text)).collect()
    }

    /// Returns all lines in order of arrival.
    pub fn log(&self) -> String {
        self.lines.iter().map(|line| format!("{}\n", line.text)).collect()
    }
}
