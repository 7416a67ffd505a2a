//! One step: a copy of the first process that starts the step's program, and stays until nothing that
//! descends from it is left.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use crate::frames::journal::{Attach, JournalRequest};
use crate::frames::{
    Answer, Failure, FailureKind, Frames, MAX_REQUEST_BYTES, Request, STREAMS, Step, VERSIONS,
};
use crate::os::{
    self, Fork, POLLERR, POLLHUP, POLLIN, PollFd, SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGQUIT,
    SIGTERM, Signals, Status, Waited,
};
use crate::relay::{Kind, Relay};
use crate::start::{self, Streams};
use crate::tree::Tree;

/// How long the host may take for its request.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
const RECEIVED_AT_ONCE: usize = 64 << 10;
/// After the step, requests are a kind, a length and a number.
const MAX_LATER_BYTES: usize = 4;

/// What a supervisor is started with.
pub struct Connection {
    pub socket: OwnedFd,
    /// Written to when the host need not stay, so that the first process does not take its going for
    /// a cancellation.
    pub answered: OwnedFd,
    /// Whether a step that was cancelled is still there.
    pub is_busy: bool,
    /// Whether the host may ask for a step that is kept for it.
    pub keeps: bool,
}

/// Supervises one step until nothing of it is left. If it is one that is to be kept, nothing was done, and the
/// request and the connection are returned.
pub fn run(tree: &Tree, connection: Connection) -> Option<(Box<Attach>, OwnedFd)> {
    os::become_reaper();
    let signals = os::signal_descriptor(Signals::of(&[SIGCHLD])).ok()?;
    let Connection { socket, answered, is_busy, keeps } = connection;
    if !os::send_all(socket.as_fd(), &Answer::Hello(VERSIONS).encode()) {
        return None;
    }
    let mut supervisor = Supervisor {
        tree,
        socket: Some(socket),
        answered: Some(answered.into()),
        signals: signals.into(),
        frames: Frames::new(MAX_REQUEST_BYTES),
        main: 0,
        starting: None,
        ended: None,
        is_cancelled: false,
        pipes: None,
        relays: Vec::new(),
    };
    match supervisor.request(keeps) {
        Ok(Asked::Kept(attach)) => {
            // Who keeps it is here whether the host is or not.
            supervisor.send_last(b"");
            return supervisor.socket.map(|socket| (attach, socket));
        }
        Ok(_) if is_busy => {
            supervisor.answer(&failed(FailureKind::Busy, &io::Error::other(""), "step"));
        }
        Ok(Asked::Step(step, streams)) => match supervisor.start(&step, streams) {
            Ok(()) => {
                // Secrets, and as long as the environment is.
                drop(step);
                supervisor.supervise();
            }
            Err(answer) => supervisor.answer(&answer),
        },
        Err(Some(answer)) => supervisor.answer(&answer),
        Err(None) => {}
    }
    None
}

fn failed(kind: FailureKind, error: &io::Error, what: &str) -> Answer {
    let errno = error.raw_os_error().unwrap_or_default();
    Answer::Failed(Failure { kind, errno, path: what.as_bytes().to_vec(), found: Vec::new() })
}

/// The first request of a host.
enum Asked {
    Step(Box<Step>, [OwnedFd; STREAMS]),
    Kept(Box<Attach>),
}

/// Where a program writes, to be read once the host has gone.
struct Pipes {
    output: OwnedFd,
    errors: OwnedFd,
}

struct Supervisor<'t> {
    tree: &'t Tree,
    /// The connection, while there is one.
    socket: Option<OwnedFd>,
    /// Until the last answer.
    answered: Option<File>,
    signals: File,
    frames: Frames,
    /// The program of the step.
    main: i32,
    /// Until the program is executed: whatever comes is the answer that it was not.
    starting: Option<(File, Vec<u8>)>,
    ended: Option<Status>,
    is_cancelled: bool,
    pipes: Option<Pipes>,
    relays: Vec<Relay>,
}

impl Supervisor<'_> {
    /// Reads the request and its descriptors; an error is the answer to it, or none if the host has
    /// gone.
    fn request(&mut self, keeps: bool) -> Result<Asked, Option<Answer>> {
        let deadline = Instant::now() + REQUEST_WITHIN;
        let malformed =
            |what: &str| Some(failed(FailureKind::Request, &io::Error::other(""), what));
        let Some(socket) = &self.socket else { return Err(None) };
        let mut descriptors = Vec::new();
        let mut bytes = vec![0; RECEIVED_AT_ONCE];
        loop {
            match self.frames.take() {
                Ok(None) => {}
                Ok(Some((kind, payload))) => {
                    if keeps
                        && let Ok(JournalRequest::Attach(attach)) =
                            JournalRequest::decode(kind, &payload)
                    {
                        return Ok(Asked::Kept(attach));
                    }
                    let request = Request::decode(kind, &payload);
                    let request = request.map_err(|error| malformed(&error.to_string()))?;
                    let Request::Step(step) = request else {
                        return Err(malformed("expected a step"));
                    };
                    let count = descriptors.len();
                    let expected = format!("expected {STREAMS} descriptors, got {count}");
                    let streams = descriptors.try_into().map_err(|_| malformed(&expected))?;
                    self.frames.set_max(MAX_LATER_BYTES);
                    return Ok(Asked::Step(step, streams));
                }
                Err(error) => return Err(malformed(&error.to_string())),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(malformed("no request within 10 s"));
            }
            let mut entries = [PollFd::new(socket.as_fd(), POLLIN)];
            os::poll(&mut entries, Some(left));
            if !entries[0].is(POLLIN | POLLHUP | POLLERR) {
                continue;
            }
            match os::receive(socket.as_fd(), &mut bytes, &mut descriptors) {
                Ok(0) => return Err(None),
                Ok(count) => self.frames.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.raw_os_error().is_some() => return Err(None),
                Err(error) => return Err(malformed(&error.to_string())),
            }
        }
    }

    /// Makes the process that becomes the program.
    fn start(&mut self, step: &Step, streams: [OwnedFd; STREAMS]) -> Result<(), Answer> {
        let process = |error: io::Error| failed(FailureKind::Process, &error, "fork");
        let setup = |error: io::Error| failed(FailureKind::Setup, &error, "terminal");
        let [input, output, errors, read_output, read_errors] = streams;
        let streams = match step.terminal {
            None => Streams::Pipes([input, output, errors]),
            Some(size) => {
                let (front, back) = os::open_terminal(size).map_err(setup)?;
                let again = front.try_clone().map_err(setup)?;
                self.relays.push(Relay::new(input, again, Kind::Terminal));
                self.relays.push(Relay::new(front, output, Kind::Host));
                Streams::Terminal(back)
            }
        };
        let (report, reported) = os::pipe().map_err(process)?;
        match os::duplicate().map_err(process)? {
            Fork::Child => {
                let failure = start::become_step(step, &streams, reported.as_fd());
                let _ = File::from(reported).write_all(&Answer::Failed(failure).encode());
                os::exit(127)
            }
            Fork::Parent(child) => self.main = child,
        }
        self.starting = Some((report.into(), Vec::new()));
        self.pipes = Some(Pipes { output: read_output, errors: read_errors });
        Ok(())
    }

    fn supervise(&mut self) {
        loop {
            let has_children = collect(self.main, &mut self.ended);
            self.report();
            let is_over = self.answered.is_none() && !has_children;
            // What was written is passed on, but nobody is waited for to write more.
            if !self.wait(is_over) && is_over {
                return;
            }
        }
    }

    /// Sends what there is to be said of the program.
    fn report(&mut self) {
        if let Some((pipe, text)) = &mut self.starting {
            match pipe.read_to_end(text) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => {}
            }
            let failure = std::mem::take(text);
            self.starting = None;
            if failure.is_empty() {
                self.send(&Answer::Started.encode());
            } else {
                self.send_last(&failure);
            }
        }
        let Some(status) = self.ended.filter(|_| self.answered.is_some()) else { return };
        // Of a step that was cancelled nothing is left when the next begins.
        if self.is_cancelled && !self.kill() {
            self.answer(&failed(FailureKind::Busy, &io::Error::other(""), "step"));
            return;
        }
        self.answer(&match status {
            Status::Exited(code) => Answer::Exited(code),
            Status::Signalled(signal) => Answer::Signalled(signal),
        });
    }

    fn answer(&mut self, answer: &Answer) {
        self.send_last(&answer.encode());
    }

    /// Sends the last answer; the first process is told before.
    fn send_last(&mut self, frame: &[u8]) {
        if let Some(mut answered) = self.answered.take() {
            let _ = answered.write_all(b"a");
        }
        self.send(frame);
    }

    fn send(&self, frame: &[u8]) {
        if let Some(socket) = &self.socket {
            // If it cannot be sent, the other end is gone, which is seen when it is waited for.
            os::send_all(socket.as_fd(), frame);
        }
    }

    /// Waits until something happens, unless it is over; returns whether there is more to pass on.
    fn wait(&mut self, is_over: bool) -> bool {
        let entry = |file: Option<&File>| {
            file.map_or(PollFd::none(), |file| PollFd::new(file.as_fd(), POLLIN))
        };
        let socket = self.socket.as_ref();
        let mut entries = vec![
            socket.map_or(PollFd::none(), |socket| PollFd::new(socket.as_fd(), POLLIN)),
            entry(Some(&self.signals)),
            entry(self.starting.as_ref().map(|(pipe, _)| pipe)),
        ];
        let relays = entries.len();
        entries.extend(self.relays.iter().map(Relay::poll_entry));
        let deadline = self.relays.iter().filter_map(Relay::deadline).min();
        let timeout = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let is_pending = self.relays.iter().any(Relay::is_pending);
        os::poll(&mut entries, if is_over && !is_pending { Some(Duration::ZERO) } else { timeout });
        let mut passes = false;
        for (relay, entry) in self.relays.iter_mut().zip(&entries[relays..]) {
            passes |= relay.go_on(*entry);
        }
        self.relays.retain(|relay| !relay.is_done());
        if entries[1].is(POLLIN) {
            let _ = self.signals.read(&mut [0; 128]);
        }
        if entries[0].is(POLLIN | POLLHUP | POLLERR) {
            // One that has gone leaves what it did not read.
            passes |= self.receive();
        }
        passes || is_pending
    }

    /// Does what the host asks for; one that is gone, or does not make sense, asks for the end. Returns
    /// whether the host has gone.
    fn receive(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut bytes = [0; 512];
        // Descriptors are for the step alone: these are closed.
        match os::receive(socket.as_fd(), &mut bytes, &mut Vec::new()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Ok(count) if count > 0 => self.frames.push(&bytes[..count]),
            _ => {
                self.lose();
                return true;
            }
        }
        loop {
            let request = match self.frames.take() {
                Ok(None) => return false,
                Ok(Some((kind, payload))) => Request::decode(kind, &payload),
                Err(error) => Err(error),
            };
            match request {
                Ok(Request::Signal(SIGKILL) | Request::Kill) => {
                    self.is_cancelled = true;
                    self.kill();
                }
                Ok(Request::Signal(signal)) => {
                    let ends = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal);
                    self.is_cancelled |= ends && self.answered.is_some();
                    self.tree.signal(os::process_id(), signal);
                }
                Ok(Request::Step(_)) | Err(_) => {
                    self.lose();
                    return true;
                }
            }
        }
    }

    /// Goes on without the host: before the last answer, that is the end of all; after it, what is
    /// left goes on, and its output to the log.
    fn lose(&mut self) {
        self.socket = None;
        if self.answered.is_some() {
            self.kill();
            self.starting = None;
            // Nobody is there to be told, but the first process.
            self.send_last(b"");
        }
        for relay in &mut self.relays {
            if relay.kind() == Kind::Host {
                relay.turn_to_log(io::stdout().as_fd());
            }
        }
        if let Some(Pipes { output, errors }) = self.pipes.take() {
            self.relays.extend(Relay::to_log(output, io::stdout().as_fd()));
            self.relays.extend(Relay::to_log(errors, io::stderr().as_fd()));
        }
    }

    /// Kills everything of the step; returns whether it is dead.
    fn kill(&mut self) -> bool {
        let (main, ended) = (self.main, &mut self.ended);
        self.tree.kill(os::process_id(), &[], || collect(main, ended))
    }
}

/// Takes what ended, the program's status too; returns whether there are more.
fn collect(main: i32, ended: &mut Option<Status>) -> bool {
    loop {
        match os::wait_any() {
            Waited::Ended(pid, status) if pid == main => *ended = Some(status),
            Waited::Ended(..) => {}
            Waited::Running => return true,
            Waited::NoChildren => return false,
        }
    }
}
