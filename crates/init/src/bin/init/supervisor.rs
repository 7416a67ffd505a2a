//! The supervisor of one step: a copy of the first process that starts the step's program, and
//! stays until no descendant of the step is left.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::mem;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::keeper::{Keeper, KeeperSettings, YIELD};
use crate::os::{
    self, ForkResult, POLLHUP, POLLIN, PollFd, SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM,
    SignalSet,
};
use crate::relay::{Relay, RelayKind};
use crate::start::{self, StepStreams, failure};
use crate::tree::ProcessTree;
use oci_hooks_init::frames::journal::{AttachRequest, StepEvent};
use oci_hooks_init::frames::{
    ContainerStep, DEAD_WITHIN_SECONDS, FailureKind, FrameBuffer, MAX_ANSWER_BYTES,
    MAX_REQUEST_BYTES, STREAMS, StepAnswer, StepFailure, StepRequest, VERSIONS,
};
use oci_hooks_init::launch::ProcessExit;
use rustix::io::ioctl_fionbio;

/// Timeout for the host to send its first request.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);
const RECEIVED_AT_ONCE: usize = 64 << 10;
/// Size limit of requests after the first one, whose payload is a number.
const MAX_LATER_BYTES: usize = 4;

/// Message to the first process before the last answer: the host may disconnect then, which the first
/// process must not take for a cancellation.
pub const ANSWERED: [u8; 1] = *b"a";
/// Message to the first process: hosts of this step may disconnect and return.
pub const KEPT: [u8; 1] = *b"k";

/// Connection of a supervisor to its host, and to the first process.
pub struct HostConnection {
    pub socket: OwnedFd,
    /// Socket for messages to the first process, and of other supervisors (`keeper`).
    pub control: OwnedFd,
    /// Set if an earlier, cancelled step is still alive.
    pub is_busy: bool,
}

/// Circumstances of steps that outlive the connection of their host.
pub struct Keeping<'r> {
    pub settings: &'r KeeperSettings,
    /// Sockets for messages to the other supervisors of such steps.
    pub others: Vec<OwnedFd>,
}

/// Supervises one step until none of its processes is left.
pub fn run(tree: &ProcessTree, connection: HostConnection, keeping: Option<Keeping<'_>>) {
    os::become_reaper();
    let Ok(signals) = os::signal_descriptor(SignalSet::of(&[SIGCHLD])) else { return };
    let HostConnection { socket, control, is_busy } = connection;
    if !os::send_all(socket.as_fd(), &StepAnswer::Hello(VERSIONS).encode()) {
        return;
    }
    let mut supervisor = StepSupervisor {
        tree,
        socket: Some(socket),
        keeper: None,
        control: Some(control),
        is_answered: false,
        signals: signals.into(),
        frames: FrameBuffer::new(MAX_REQUEST_BYTES),
        main: 0,
        starting: None,
        ended: None,
        is_cancelled: false,
        pipes: [const { None }; 2],
        relays: Vec::new(),
        terminal: None,
    };
    let keeps = keeping.is_some();
    let done = match (supervisor.request(), keeping) {
        (Ok((StepRequest::Step(_), _)), None) if is_busy => {
            Err(Some(StepFailure::new(FailureKind::Busy, 0, "step")))
        }
        (Ok((StepRequest::Step(step), descriptors)), None) => {
            supervisor.run_step(step, descriptors).map_err(Some)
        }
        (Ok((StepRequest::Attach(attach), _)), Some(keeping)) => {
            supervisor.keep_step(*attach, keeping).map_err(Some)
        }
        (Ok(_), _) => Err(Some(malformed("expected a step"))),
        (Err(failure), _) => Err(failure),
    };
    if let Err(Some(failure)) = done {
        supervisor.announce_answer();
        if let Some(socket) = &supervisor.socket {
            os::send_all(socket.as_fd(), &failure_frame(keeps, failure));
        }
    }
}

/// Returns the frame by which a host learns that its step was not begun.
pub fn failure_frame(keeps: bool, failure: StepFailure) -> Vec<u8> {
    match keeps {
        true => StepEvent::failed(0, failure).encode(),
        false => StepAnswer::Failed(failure).encode(),
    }
}

fn malformed(what: &str) -> StepFailure {
    StepFailure::new(FailureKind::Request, 0, what)
}

struct StepSupervisor<'t> {
    tree: &'t ProcessTree,
    /// Connection to the only host, while there is one.
    socket: Option<OwnedFd>,
    /// Keeper of a step that outlives the connections of its hosts.
    keeper: Option<Keeper>,
    /// Socket to the container's first process: reports that the last answer follows, and receives
    /// the connections of hosts that attach. `None` once hosts cannot attach any more.
    control: Option<OwnedFd>,
    /// Set once the last answer is announced to the first process.
    is_answered: bool,
    signals: File,
    frames: FrameBuffer,
    /// Process id of the step's program.
    main: i32,
    /// Pipe for the failure to execute the program, and the bytes read from it; `None` once the
    /// program is executed or has failed.
    starting: Option<(File, Vec<u8>)>,
    ended: Option<ProcessExit>,
    is_cancelled: bool,
    /// Read ends of the program's output and errors, until their write ends are closed or they are
    /// read for the log.
    pipes: [Option<File>; 2],
    relays: Vec<Relay>,
    /// Master of the program's terminal, if it has one, until the last answer.
    terminal: Option<OwnedFd>,
}

impl StepSupervisor<'_> {
    /// Reads the first request and its descriptors. An error is the failure to report, or `None` if
    /// the host has disconnected.
    fn request(&mut self) -> Result<(StepRequest, Vec<OwnedFd>), Option<StepFailure>> {
        let deadline = Instant::now() + REQUEST_WITHIN;
        let Some(socket) = &self.socket else { return Err(None) };
        let mut descriptors = Vec::new();
        let mut bytes = vec![0; RECEIVED_AT_ONCE];
        loop {
            match self.frames.decode_next(StepRequest::decode) {
                Ok(None) => {}
                Ok(Some(request)) => {
                    // The received bytes contain secrets.
                    self.frames.set_max(MAX_LATER_BYTES);
                    return Ok((request, descriptors));
                }
                Err(error) => return Err(Some(malformed(&error.to_string()))),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Some(malformed("no request within 10 s")));
            }
            let mut entries = [PollFd::new(socket.as_fd(), POLLIN)];
            os::poll(&mut entries, Some(left));
            if !entries[0].is_readable() {
                continue;
            }
            match os::receive(socket.as_fd(), &mut bytes, &mut descriptors) {
                Ok(0) => return Err(None),
                Ok(count) => self.frames.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.raw_os_error().is_some() => return Err(None),
                Err(error) => return Err(Some(malformed(&error.to_string()))),
            }
        }
    }

    /// Runs a step with the streams that its host (the program outside of the container) has sent.
    fn run_step(
        &mut self,
        step: Box<ContainerStep>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), StepFailure> {
        let count = descriptors.len();
        let streams: [OwnedFd; STREAMS] = descriptors
            .try_into()
            .map_err(|_| malformed(&format!("expected {STREAMS} descriptors, got {count}")))?;
        self.start(&step, streams)?;
        // Contains secrets, and is as large as the environment.
        drop(step);
        // Requests may have come together with the step.
        self.handle_requests();
        self.supervise();
        Ok(())
    }

    /// Runs a step whose hosts may disconnect and return. If its id was used before, passes the host on
    /// to the supervisor that keeps the step, if there is one.
    fn keep_step(
        &mut self,
        attach: AttachRequest,
        keeping: Keeping<'_>,
    ) -> Result<(), StepFailure> {
        let AttachRequest { id, from, step } = attach;
        let Keeping { settings, others } = keeping;
        // Before the claim: a host of the same id that cannot be passed on yet asks again, and is
        // passed on to this process then.
        self.tell(KEPT);
        let claimed = if step.is_some() { settings.agent_dir.claim(&id) } else { Ok(false) };
        let is_new = claimed.map_err(|error| {
            failure(FailureKind::Setup, &error, "file that marks its id as used")
        })?;
        let Some(host) = self.socket.take() else { return Ok(()) };
        let Some(step) = step.filter(|_| is_new) else {
            let request = StepRequest::Attach(Box::new(AttachRequest { id, from, step: None }));
            send_to(&others, &request.encode().unwrap_or_default(), host.as_fd());
            return Ok(());
        };
        // Shows that the step is not lost while other steps are killed.
        os::send_all(host.as_fd(), &StepEvent::Heartbeat.encode());
        let is_free = yield_others(others);
        let mut keeper = Keeper::new(id, settings.away, step.directory.clone());
        keeper.attach(host, from);
        self.keeper = Some(keeper);
        let started = match is_free {
            true => kept_streams()
                .map_err(|error| failure(FailureKind::Process, &error, "step"))
                .and_then(|streams| self.start(&step, streams)),
            false => Err(StepFailure::new(FailureKind::Busy, 0, "step")),
        };
        // Contains secrets, and is as large as the environment.
        drop(step);
        if let Err(failure) = started {
            self.answer(&StepAnswer::Failed(failure));
        }
        self.supervise();
        Ok(())
    }

    /// Creates the process that executes the program.
    fn start(
        &mut self,
        step: &ContainerStep,
        streams: [OwnedFd; STREAMS],
    ) -> Result<(), StepFailure> {
        let process = |error: io::Error| failure(FailureKind::Process, &error, "fork");
        let setup = |error: io::Error| failure(FailureKind::Setup, &error, "terminal");
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
        self.pipes = [Some(read_output.into()), Some(read_errors.into())];
        Ok(())
    }

    fn supervise(&mut self) {
        loop {
            let has_children = collect(self.main, &mut self.ended);
            self.report();
            self.keep();
            let is_over = self.is_answered && self.keeper.is_none() && !has_children;
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
            let mut frames = FrameBuffer::new(MAX_ANSWER_BYTES);
            frames.push(text);
            self.starting = None;
            match frames.decode_next(StepAnswer::decode) {
                Ok(Some(failed)) => self.answer(&failed),
                _ => self.send(&StepAnswer::Started),
            }
        }
        let Some(exit) = self.ended.filter(|_| !self.is_answered) else { return };
        // No process of a cancelled step may be left when the next step begins.
        if self.is_cancelled && !self.kill() {
            self.answer(&StepAnswer::Failed(StepFailure::new(FailureKind::Busy, 0, "step")));
            return;
        }
        self.answer(&match exit {
            ProcessExit::Exited(code) => StepAnswer::Exited(code),
            ProcessExit::Signalled(signal) => StepAnswer::Signalled(signal),
        });
    }

    /// Lets the keeper serve its hosts, until it is done.
    fn keep(&mut self) {
        if self.keeper.as_ref().is_some_and(Keeper::is_abandoned) {
            self.lose();
        }
        let Some(keeper) = &mut self.keeper else { return };
        keeper.serve(self.pipes.iter().all(Option::is_none));
        let (is_over, is_done) = (keeper.is_over(), keeper.is_done());
        if is_over {
            self.log_output();
        }
        if is_done {
            (self.keeper, self.control) = (None, None);
        }
    }

    /// Sends the last answer, after notifying the first process.
    fn answer(&mut self, answer: &StepAnswer) {
        self.announce_answer();
        self.send(answer);
    }

    /// Notifies the first process that the last answer follows, or that there is no host for it.
    fn announce_answer(&mut self) {
        self.terminal = None;
        if !mem::replace(&mut self.is_answered, true) {
            self.tell(ANSWERED);
        }
    }

    fn tell(&self, message: [u8; 1]) {
        if let Some(control) = &self.control {
            os::send_all(control.as_fd(), &message);
        }
    }

    fn send(&mut self, answer: &StepAnswer) {
        if let Some(keeper) = &mut self.keeper {
            keeper.note(answer);
        } else if let Some(socket) = &self.socket {
            // An error means that the host has disconnected, which the next poll reports.
            os::send_all(socket.as_fd(), &answer.encode());
        }
    }

    /// Waits for the next event, unless the step is over; returns whether there is more to forward.
    fn wait(&mut self, is_over: bool) -> bool {
        let mut entries = vec![
            PollFd::input(self.socket.as_ref().map(OwnedFd::as_fd)),
            PollFd::new(self.signals.as_fd(), POLLIN),
            PollFd::input(self.starting.as_ref().map(|(pipe, _)| pipe.as_fd())),
        ];
        let relays = entries.len();
        entries.extend(self.relays.iter().map(Relay::poll_entry));
        let kept = entries.len();
        if let (Some(keeper), Some(control)) = (&self.keeper, &self.control) {
            keeper.push_poll_entries(control.as_fd(), &self.pipes, &mut entries);
        }
        let deadlines = self.relays.iter().filter_map(|relay| relay.deadline);
        let deadline = deadlines.chain(self.keeper.as_ref().and_then(Keeper::deadline)).min();
        let timeout = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let is_pending = self.relays.iter().any(Relay::is_pending);
        os::poll(&mut entries, if is_over && !is_pending { Some(Duration::ZERO) } else { timeout });
        let mut passes = false;
        for (relay, entry) in self.relays.iter_mut().zip(&entries[relays..]) {
            passes |= relay.relay_bytes(*entry);
        }
        self.relays.retain(|relay| !relay.is_done);
        if entries[1].is(POLLIN) {
            let _ = self.signals.read(&mut [0; 128]);
        }
        if entries[0].is_readable() {
            // Output that a lost host did not read is still forwarded.
            passes |= self.receive();
        }
        if let (Some(keeper), Some(control)) = (&mut self.keeper, &self.control) {
            for request in keeper.receive(control.as_fd(), &mut self.pipes, &entries[kept..]) {
                self.obey(&request);
            }
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
            let is_valid = match self.frames.decode_next(StepRequest::decode) {
                Ok(None) => return false,
                Ok(Some(request)) => self.obey(&request),
                Err(_) => false,
            };
            if !is_valid {
                self.lose();
                return true;
            }
        }
    }

    /// Handles a request of a host; returns whether it is one about a step that was begun.
    fn obey(&mut self, request: &StepRequest) -> bool {
        match request {
            StepRequest::Signal(SIGKILL) => {
                self.is_cancelled = true;
                self.kill();
            }
            StepRequest::Signal(signal) => {
                let ends = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(signal);
                self.is_cancelled |= ends && !self.is_answered;
                self.tree.signal(os::process_id(), *signal);
            }
            StepRequest::Resize(size) => {
                // The program may have ended.
                let _ = self.terminal.as_ref().map(|front| os::resize_terminal(front, *size));
            }
            _ => return false,
        }
        true
    }

    /// Continues without a host. Before the last answer, kills the step; after it, lets the
    /// remaining processes go on, and forwards their output to the log.
    fn lose(&mut self) {
        self.socket = None;
        if !self.is_answered {
            self.kill();
            self.starting = None;
            self.announce_answer();
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.abandon();
        }
        for relay in &mut self.relays {
            relay.turn_to_log(io::stdout().as_fd());
        }
        self.log_output();
    }

    /// Reads the program's output for the log from now on.
    fn log_output(&mut self) {
        let [output, errors] = mem::take(&mut self.pipes);
        if let Some(output) = output {
            self.relays.extend(Relay::to_log(output.into(), io::stdout().as_fd()));
        }
        if let Some(errors) = errors {
            self.relays.extend(Relay::to_log(errors.into(), io::stderr().as_fd()));
        }
    }

    /// Kills all processes of the step; returns whether they are dead.
    fn kill(&mut self) -> bool {
        let (main, ended) = (self.main, &mut self.ended);
        self.tree.kill(os::process_id(), &[], || collect(main, ended))
    }
}

/// Reaps children, and stores the program's end; returns whether there are more children.
fn collect(main: i32, ended: &mut Option<ProcessExit>) -> bool {
    loop {
        match os::wait_any() {
            Ok(Some((pid, exit))) if pid == main => *ended = Some(exit),
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Returns the streams of a step that is kept: the input is empty, and the read ends of its output and
/// errors do not block.
fn kept_streams() -> io::Result<[OwnedFd; STREAMS]> {
    let (input, _) = io::pipe()?;
    let (output, output_end) = io::pipe()?;
    let (errors, errors_end) = io::pipe()?;
    ioctl_fionbio(&output, true)?;
    ioctl_fionbio(&errors, true)?;
    Ok([input.into(), output_end.into(), errors_end.into(), output.into(), errors.into()])
}

/// Makes other supervisors kill steps without a host; returns whether these are dead.
fn yield_others(others: Vec<OwnedFd>) -> bool {
    let Ok((yielded, held)) = os::pipe() else { return false };
    send_to(&others, &YIELD, held.as_fd());
    drop((others, held));
    let mut entries = [PollFd::new(yielded.as_fd(), POLLIN)];
    os::poll(&mut entries, Some(Duration::from_secs(DEAD_WITHIN_SECONDS)));
    entries[0].is(POLLHUP)
}

/// Sends a message with a descriptor to other supervisors. Those whose keeper is done do not get it.
fn send_to(others: &[OwnedFd], message: &[u8], descriptor: BorrowedFd<'_>) {
    for other in others {
        let _ = os::send_with(other.as_fd(), message, &[descriptor]);
    }
}
