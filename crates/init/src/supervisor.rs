//! The supervisor of one step: a copy of the first process that starts the step's program, and
//! stays until no descendant of the step is left.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use crate::frames::journal::AttachRequest;
use crate::frames::{
    ContainerStep, FailureKind, FrameBuffer, MAX_REQUEST_BYTES, STREAMS, StepAnswer, StepFailure,
    StepRequest, VERSIONS,
};
use crate::os::{
    self, ChildStatus, ChildWait, ForkResult, POLLERR, POLLHUP, POLLIN, PollFd, SIGCHLD, SIGHUP,
    SIGINT, SIGKILL, SIGQUIT, SIGTERM, SignalSet,
};
use crate::relay::{Relay, RelayKind};
use crate::start::{self, StepStreams};
use crate::tree::ProcessTree;

/// Timeout for the host to send its first request.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
const RECEIVED_AT_ONCE: usize = 64 << 10;
/// Size limit of requests after the first one, whose payload is a number.
const MAX_LATER_BYTES: usize = 4;

/// Connection of a supervisor to its host, and to the first process.
pub struct HostConnection {
    pub socket: OwnedFd,
    /// Pipe to the first process. A byte is written before the last answer: the host may disconnect
    /// then, which the first process must not take for a cancellation.
    pub answered: OwnedFd,
    /// Set if an earlier, cancelled step is still alive.
    pub is_busy: bool,
    /// Set if the host may request a step that outlives its connection.
    pub keeps: bool,
}

/// Supervises one step until none of its processes is left. If the host requests a step that
/// outlives its connection, starts nothing, and returns the request and the connection, for a
/// keeper.
pub fn run(
    tree: &ProcessTree,
    connection: HostConnection,
) -> Option<(Box<AttachRequest>, OwnedFd)> {
    os::become_reaper();
    let signals = os::signal_descriptor(SignalSet::of(&[SIGCHLD])).ok()?;
    let HostConnection { socket, answered, is_busy, keeps } = connection;
    if !os::send_all(socket.as_fd(), &StepAnswer::Hello(VERSIONS).encode()) {
        return None;
    }
    let mut supervisor = StepSupervisor {
        tree,
        socket: Some(socket),
        answered: Some(answered.into()),
        signals: signals.into(),
        frames: FrameBuffer::new(MAX_REQUEST_BYTES),
        main: 0,
        starting: None,
        ended: None,
        is_cancelled: false,
        pipes: None,
        relays: Vec::new(),
        terminal: None,
    };
    match supervisor.request(keeps) {
        Ok(FirstRequest::Kept(attach)) => {
            // The keeper's host may disconnect: the first process must not take that for a cancellation.
            supervisor.send_last(b"");
            return supervisor.socket.map(|socket| (attach, socket));
        }
        Ok(_) if is_busy => {
            supervisor.answer(&failure_answer(FailureKind::Busy, &io::Error::other(""), "step"));
        }
        Ok(FirstRequest::Step(step, streams)) => match supervisor.start(&step, streams) {
            Ok(()) => {
                // Contains secrets, and is as large as the environment.
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

fn failure_answer(kind: FailureKind, error: &io::Error, what: &str) -> StepAnswer {
    let errno = error.raw_os_error().unwrap_or_default();
    StepAnswer::Failed(StepFailure::new(kind, errno, what))
}

/// The first request of a host.
enum FirstRequest {
    Step(Box<ContainerStep>, [OwnedFd; STREAMS]),
    Kept(Box<AttachRequest>),
}

/// Read ends of the program's output, to be read once the host has disconnected.
struct ProgramPipes {
    output: OwnedFd,
    errors: OwnedFd,
}

struct StepSupervisor<'t> {
    tree: &'t ProcessTree,
    /// Connection to the host, while there is one.
    socket: Option<OwnedFd>,
    /// Pipe to the first process; `None` once the last answer is announced there.
    answered: Option<File>,
    signals: File,
    frames: FrameBuffer,
    /// Process id of the step's program.
    main: i32,
    /// Pipe for the failure to execute the program, and the bytes read from it; `None` once the
    /// program is executed or has failed.
    starting: Option<(File, Vec<u8>)>,
    ended: Option<ChildStatus>,
    is_cancelled: bool,
    pipes: Option<ProgramPipes>,
    relays: Vec<Relay>,
    /// Master of the program's terminal, if it has one, until the last answer.
    terminal: Option<OwnedFd>,
}

impl StepSupervisor<'_> {
    /// Reads the request and its descriptors. An error is the answer to send, or `None` if the host
    /// has disconnected.
    fn request(&mut self, keeps: bool) -> Result<FirstRequest, Option<StepAnswer>> {
        let deadline = Instant::now() + REQUEST_WITHIN;
        let malformed =
            |what: &str| Some(failure_answer(FailureKind::Request, &io::Error::other(""), what));
        let Some(socket) = &self.socket else { return Err(None) };
        let mut descriptors = Vec::new();
        let mut bytes = vec![0; RECEIVED_AT_ONCE];
        loop {
            match self.frames.decode_next(StepRequest::decode) {
                Ok(None) => {}
                Ok(Some(StepRequest::Attach(attach))) if keeps => {
                    return Ok(FirstRequest::Kept(attach));
                }
                Ok(Some(StepRequest::Step(step))) => {
                    let count = descriptors.len();
                    let expected = format!("expected {STREAMS} descriptors, got {count}");
                    let streams = descriptors.try_into().map_err(|_| malformed(&expected))?;
                    self.frames.set_max(MAX_LATER_BYTES);
                    return Ok(FirstRequest::Step(step, streams));
                }
                Ok(Some(_)) => return Err(malformed("expected a step")),
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

    /// Creates the process that executes the program.
    fn start(
        &mut self,
        step: &ContainerStep,
        streams: [OwnedFd; STREAMS],
    ) -> Result<(), StepAnswer> {
        let process = |error: io::Error| failure_answer(FailureKind::Process, &error, "fork");
        let setup = |error: io::Error| failure_answer(FailureKind::Setup, &error, "terminal");
        let [input, output, errors, read_output, read_errors] = streams;
        let streams = match step.terminal {
            None => StepStreams::Pipes([input, output, errors]),
            Some(size) => {
                let (front, back) = os::open_terminal(size).map_err(setup)?;
                let again = front.try_clone().map_err(setup)?;
                self.relays.push(Relay::new(input, again, RelayKind::Terminal));
                self.terminal = front.try_clone().ok();
                self.relays.push(Relay::new(front, output, RelayKind::Host));
                StepStreams::Terminal(back)
            }
        };
        let (report, reported) = os::pipe().map_err(process)?;
        match os::duplicate().map_err(process)? {
            ForkResult::Child => {
                let failure = start::become_step(step, &streams, reported.as_fd());
                let _ = File::from(reported).write_all(&StepAnswer::Failed(failure).encode());
                os::exit(127)
            }
            ForkResult::Parent(child) => self.main = child,
        }
        self.starting = Some((report.into(), Vec::new()));
        self.pipes = Some(ProgramPipes { output: read_output, errors: read_errors });
        Ok(())
    }

    fn supervise(&mut self) {
        // Requests may have come together with the step.
        self.handle_requests();
        loop {
            let has_children = collect(self.main, &mut self.ended);
            self.report();
            let is_over = self.answered.is_none() && !has_children;
            // Written output is forwarded, but no further output is waited for.
            if !self.wait(is_over) && is_over {
                return;
            }
        }
    }

    /// Reports the start and the end of the program.
    fn report(&mut self) {
        if let Some((pipe, text)) = &mut self.starting {
            match pipe.read_to_end(text) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => {}
            }
            let failure = std::mem::take(text);
            self.starting = None;
            if failure.is_empty() {
                self.send(&StepAnswer::Started.encode());
            } else {
                self.send_last(&failure);
            }
        }
        let Some(status) = self.ended.filter(|_| self.answered.is_some()) else { return };
        // No process of a cancelled step may be left when the next step begins.
        if self.is_cancelled && !self.kill() {
            self.answer(&failure_answer(FailureKind::Busy, &io::Error::other(""), "step"));
            return;
        }
        self.answer(&match status {
            ChildStatus::Exited(code) => StepAnswer::Exited(code),
            ChildStatus::Signalled(signal) => StepAnswer::Signalled(signal),
        });
    }

    fn answer(&mut self, answer: &StepAnswer) {
        self.send_last(&answer.encode());
    }

    /// Sends the last answer, after notifying the first process.
    fn send_last(&mut self, frame: &[u8]) {
        self.terminal = None;
        if let Some(mut answered) = self.answered.take() {
            let _ = answered.write_all(b"a");
        }
        self.send(frame);
    }

    fn send(&self, frame: &[u8]) {
        if let Some(socket) = &self.socket {
            // An error means that the host has disconnected, which the next poll reports.
            os::send_all(socket.as_fd(), frame);
        }
    }

    /// Waits for the next event, unless the step is over; returns whether there is more to forward.
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
            passes |= relay.relay_bytes(*entry);
        }
        self.relays.retain(|relay| !relay.is_done());
        if entries[1].is(POLLIN) {
            let _ = self.signals.read(&mut [0; 128]);
        }
        if entries[0].is(POLLIN | POLLHUP | POLLERR) {
            // Output that a lost host did not read is still forwarded.
            passes |= self.receive();
        }
        passes || is_pending
    }

    /// Handles requests of the host; an invalid one disconnects it. Returns whether the host has
    /// disconnected.
    fn receive(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut bytes = [0; 512];
        // Only a step has descriptors: later ones are closed.
        match os::receive(socket.as_fd(), &mut bytes, &mut Vec::new()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Ok(count) if count > 0 => self.frames.push(&bytes[..count]),
            _ => {
                self.lose();
                return true;
            }
        }
        self.handle_requests()
    }

    /// Handles the received requests of the host; returns whether an invalid one has disconnected it.
    fn handle_requests(&mut self) -> bool {
        loop {
            match self.frames.decode_next(StepRequest::decode) {
                Ok(None) => return false,
                Ok(Some(StepRequest::Signal(SIGKILL) | StepRequest::Kill)) => {
                    self.is_cancelled = true;
                    self.kill();
                }
                Ok(Some(StepRequest::Signal(signal))) => {
                    let ends = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal);
                    self.is_cancelled |= ends && self.answered.is_some();
                    self.tree.signal(os::process_id(), signal);
                }
                Ok(Some(StepRequest::Resize(size))) => {
                    // The program may have ended.
                    let _ = self
                        .terminal
                        .as_ref()
                        .map(|front| os::resize_terminal(front.as_fd(), size));
                }
                Ok(Some(_)) | Err(_) => {
                    self.lose();
                    return true;
                }
            }
        }
    }

    /// Continues without the host. Before the last answer, kills the step; after it, lets the
    /// remaining processes go on, and forwards their output to the log.
    fn lose(&mut self) {
        self.socket = None;
        if self.answered.is_some() {
            self.kill();
            self.starting = None;
            // Only the first process is left to be notified.
            self.send_last(b"");
        }
        for relay in &mut self.relays {
            if relay.kind() == RelayKind::Host {
                relay.turn_to_log(io::stdout().as_fd());
            }
        }
        if let Some(ProgramPipes { output, errors }) = self.pipes.take() {
            self.relays.extend(Relay::to_log(output, io::stdout().as_fd()));
            self.relays.extend(Relay::to_log(errors, io::stderr().as_fd()));
        }
    }

    /// Kills all processes of the step; returns whether they are dead.
    fn kill(&mut self) -> bool {
        let (main, ended) = (self.main, &mut self.ended);
        self.tree.kill(os::process_id(), &[], || collect(main, ended))
    }
}

/// Reaps children, and stores the program's status; returns whether there are more children.
fn collect(main: i32, ended: &mut Option<ChildStatus>) -> bool {
    loop {
        match os::wait_any() {
            ChildWait::Ended(pid, status) if pid == main => *ended = Some(status),
            ChildWait::Ended(..) => {}
            ChildWait::Running => return true,
            ChildWait::NoChildren => return false,
        }
    }
}
