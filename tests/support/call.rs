//! One call of the hook as the runner makes it: what it writes as it comes, how it ends, and whether
//! anything keeps its pipes open.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use super::host::Host;
use super::kills::{Kill, Whom};
use super::program::DEADLINE;

/// Where a line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// A line of the hook.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) stream: Stream,
    /// When it came, from the start of the call.
    pub(crate) at: Duration,
    pub(crate) text: String,
}

enum Event {
    Line(Stream, String),
    Closed,
    Exited(ExitStatus),
}

/// A hook that runs.
pub(crate) struct Call {
    pid: Pid,
    events: Receiver<Event>,
    started: Instant,
    lines: Vec<Line>,
    closed: usize,
    status: Option<(ExitStatus, Instant)>,
    response: Option<PathBuf>,
}

impl Call {
    /// Starts the hook with a request on standard input. The response is looked for in a file.
    pub(crate) fn start(
        host: &Host,
        command: Command,
        request: Vec<u8>,
        response: Option<PathBuf>,
    ) -> Self {
        Self::start_by(|command| host.spawn(command), command, request, response)
    }

    /// Starts the hook by a function.
    pub(crate) fn start_by(
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
        // The runner lets its children be the first to go.
        let _ = fs::write(format!("/proc/{}/oom_score_adj", child.id()), "500");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        let (sender, events) = mpsc::channel();
        let out = child.stdout.take().expect("it is a pipe");
        let err = child.stderr.take().expect("it is a pipe");
        read(sender.clone(), Stream::Out, out);
        read(sender.clone(), Stream::Err, err);
        thread::spawn(move || {
            // It may have ended without reading.
            let _ = stdin.write_all(&request);
        });
        thread::spawn(move || {
            let status = child.wait().expect("a child can be waited for once");
            // The test may have ended.
            let _ = sender.send(Event::Exited(status));
        });
        Self { pid, events, started, lines: Vec::new(), closed: 0, status: None, response }
    }

    /// Waits for a line that has a text in it.
    #[track_caller]
    pub(crate) fn wait_for_line(&mut self, text: &str) -> &mut Self {
        let deadline = Instant::now() + DEADLINE;
        while !self.lines.iter().any(|line| line.text.contains(text)) {
            let progress = self.next(deadline);
            assert!(progress && self.closed < 2, "no line with {text:?}: {:#?}", self.lines);
        }
        self
    }

    /// Returns the number of the hook's process.
    pub(crate) fn id(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    /// Sends a signal to the hook, to it alone.
    pub(crate) fn signal(&mut self, signal: Signal) {
        // What has come by now is taken first: its number may be another process's after its end.
        while self.next(Instant::now()) {}
        if self.status.is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Sends a signal to the hook, or with it to what it started.
    pub(crate) fn signal_to(&mut self, whom: Whom, signal: Signal) {
        while self.next(Instant::now()) {}
        match whom {
            Whom::Program => self.signal(signal),
            Whom::Group if self.status.is_none() => drop(kill_process_group(self.pid, signal)),
            Whom::Group => {}
        }
    }

    /// Cancels the step as the runner does, and says which signals that took.
    #[track_caller]
    pub(crate) fn cancel(mut self) -> (Ended, usize) {
        let mut signals = 0;
        for (signal, patience) in [(Signal::INT, 7500), (Signal::TERM, 2500), (Signal::KILL, 5000)]
        {
            self.signal(signal);
            signals += 1;
            let deadline = Instant::now() + Duration::from_millis(patience);
            while self.status.is_none() && self.next(deadline) {}
            if self.status.is_some() {
                break;
            }
        }
        (self.wait(), signals)
    }

    /// Kills the hook, it alone, after a while, and waits until it is dead; what it started may live
    /// on and hold its pipes.
    #[track_caller]
    pub(crate) fn kill_after(mut self, delay: Duration) {
        self.pass(delay);
        self.signal(Signal::KILL);
        self.wait_for_death();
    }

    /// Kills the hook, or with it what it started, and waits until it is dead.
    #[track_caller]
    pub(crate) fn kill(mut self, kill: &Kill) {
        self.pass(kill.after);
        match kill.whom {
            Whom::Program => self.signal(Signal::KILL),
            // Others of it may live when the hook has ended.
            Whom::Group => drop(kill_process_group(self.pid, Signal::KILL)),
        }
        self.wait_for_death();
        if let Some(path) = &self.response {
            let _ = fs::remove_file(path);
        }
    }

    /// Lets a while pass, or until the hook ends.
    pub(crate) fn pass(&mut self, delay: Duration) {
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

    /// Waits for the end of the hook and, as the runner, for up to five seconds more for its pipes.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Ended {
        let deadline = self.started + DEADLINE * 2;
        while self.status.is_none() {
            if !self.next(deadline) {
                let _ = kill_process(self.pid, Signal::KILL);
                panic!("the hook does not end; it wrote {:#?}", self.lines);
            }
        }
        let (status, exited) = self.status.expect("the loop ends with one");
        while self.closed < 2 && self.next(exited + Duration::from_secs(5)) {}
        let pipes_held = (self.closed < 2).then(|| exited.elapsed());
        let response = self.response.as_ref().filter(|_| status.success()).and_then(|path| {
            let text = fs::read_to_string(path).expect("the response file stays");
            (!text.trim().is_empty())
                .then(|| serde_json::from_str(&text).expect("the response is JSON"))
        });
        if let Some(path) = &self.response {
            let _ = fs::remove_file(path);
        }
        Ended { status, lines: self.lines, pipes_held, response, took: exited - self.started }
    }

    /// Takes what happens next and says whether anything did before the deadline.
    fn next(&mut self, deadline: Instant) -> bool {
        let event = self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        match event {
            Ok(Event::Line(stream, text)) => {
                self.lines.push(Line { stream, at: self.started.elapsed(), text });
            }
            Ok(Event::Closed) => self.closed += 1,
            Ok(Event::Exited(status)) => self.status = Some((status, Instant::now())),
            Err(_) => return false,
        }
        true
    }
}

fn read(sender: Sender<Event>, stream: Stream, pipe: impl Read + Send + 'static) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line);
            let text = text.strip_suffix('\n').unwrap_or(&text).to_owned();
            if sender.send(Event::Line(stream, text)).is_err() {
                return;
            }
            line.clear();
        }
        let _ = sender.send(Event::Closed);
    });
}

/// A hook that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) lines: Vec<Line>,
    /// How long after its end something had its pipes open still: none if they were closed.
    pipes_held: Option<Duration>,
    pub(crate) response: Option<Value>,
    pub(crate) took: Duration,
}

impl Ended {
    /// Checks that the step succeeded, and returns it.
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        self.code(0)
    }

    /// Checks the exit code of the step, and that nothing keeps the runner waiting.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}", self.log());
        assert_eq!(self.pipes_held, None, "something holds the hook's pipes\n{}", self.log());
        self
    }

    /// Checks that the step failed by the hook's doing, and returns all that it said.
    #[track_caller]
    pub(crate) fn failure(self) -> String {
        assert!(!self.status.success(), "it succeeded\n{}", self.log());
        assert_eq!(self.pipes_held, None, "something holds the hook's pipes\n{}", self.log());
        let log = self.log();
        assert!(!log.trim().is_empty(), "it failed without a word");
        assert!(!log.contains("panicked at"), "{log}");
        log
    }

    pub(crate) fn stdout(&self) -> String {
        self.stream(Stream::Out)
    }

    pub(crate) fn stderr(&self) -> String {
        self.stream(Stream::Err)
    }

    fn stream(&self, stream: Stream) -> String {
        let lines = self.lines.iter().filter(|line| line.stream == stream);
        lines.map(|line| format!("{}\n", line.text)).collect()
    }

    /// Returns all lines in the order in which they came.
    pub(crate) fn log(&self) -> String {
        self.lines.iter().map(|line| format!("{}\n", line.text)).collect()
    }
}
