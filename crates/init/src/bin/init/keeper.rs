//! The keeper of a step: the part of its supervisor (`supervisor`) that buffers output for hosts
//! (programs outside of the container), which may disconnect and return.
//!
//! It ends once a host has acknowledged the end of the step, or none was attached for some time. It reads the step's
//! output as far as there is room for it (`backlog`), and the step blocks if there is none.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::agent_dir::AgentDirectory;
use crate::backlog::Backlog;
use crate::clients::Clients;
use crate::limits::{count_limit_events, is_full, limit_events_since};
use crate::os::{self, POLLIN, PollFd};
use oci_hooks_init::drain::Drain;
use oci_hooks_init::frames::journal::{
    LimitEvents, MAX_OUTPUT_BYTES, OutputStream, StepEvent, StepId,
};
use oci_hooks_init::frames::{FailureKind, FrameBuffer, StepAnswer, StepFailure, StepRequest};

/// Message from the supervisor of a new step to the other supervisors: a step without a host is to
/// be killed. The new step starts once all receivers have closed the pipe that is sent with the
/// message, which each does when its step is dead or has a host.
pub const YIELD: [u8; 1] = *b"y";
/// Size limit of a message: an attach request without a step.
const MAX_MESSAGE_BYTES: usize = 256;
/// Time without a host after which a step is killed. The end of a step is kept at least as long.
pub const AWAY: Duration = Duration::from_secs(300);

/// Settings of steps that outlive the connection of their host.
pub struct KeeperSettings {
    pub agent_dir: AgentDirectory,
    /// Maximum time without an attached host, after which the step is killed.
    pub away: Duration,
}

/// State of a keeper.
pub struct Keeper {
    id: StepId,
    away: Duration,
    clients: Clients,
    backlog: Backlog,
    phase: KeeperPhase,
    /// The step's working directory; empty for the container's.
    directory: Vec<u8>,
    /// Events of the container's limits before the step, which are subtracted from those at its
    /// end.
    before: LimitEvents,
    is_started: bool,
    /// Set once a host has acknowledged the end.
    is_known: bool,
    /// Time since which no host is attached.
    alone_since: Option<Instant>,
    /// Pipes of steps that begin; closed once this step is dead or has a host.
    yields: Vec<OwnedFd>,
}

enum KeeperPhase {
    Running,
    /// The program has exited; further output is read.
    Draining {
        end: StepAnswer,
        drain: Drain,
    },
    Over(StepEvent),
}

impl Keeper {
    /// Returns the keeper of a step that begins in this working directory.
    pub fn new(id: StepId, away: Duration, directory: Vec<u8>) -> Self {
        Keeper {
            id,
            away,
            clients: Clients::default(),
            backlog: Backlog::default(),
            phase: KeeperPhase::Running,
            directory,
            before: count_limit_events(),
            is_started: false,
            is_known: false,
            alone_since: None,
            yields: Vec::new(),
        }
    }

    /// Adds a host that receives the output from an offset on.
    pub fn attach(&mut self, host: OwnedFd, from: u64) {
        self.clients.attach(host, from);
    }

    /// Handles an answer of the supervisor.
    pub fn note(&mut self, answer: &StepAnswer) {
        match answer {
            StepAnswer::Started => self.is_started = true,
            end => {
                self.phase = KeeperPhase::Draining { end: end.clone(), drain: Drain::start() };
            }
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.phase, KeeperPhase::Over(_))
    }

    /// Returns whether the step is over, and a host has its end and output, or all were away too long.
    pub fn is_done(&self) -> bool {
        self.is_over() && (self.is_known || self.is_late())
    }

    /// Returns whether the step has to be killed: it has no host, for too long or while another step
    /// begins.
    pub fn is_abandoned(&self) -> bool {
        let is_unwanted = !self.yields.is_empty() || self.is_late();
        !self.is_over() && !self.clients.is_attached() && is_unwanted
    }

    fn is_late(&self) -> bool {
        self.alone_until().is_some_and(|until| Instant::now() >= until)
    }

    /// Returns how long the step, or its end, is kept without a host.
    fn alone_until(&self) -> Option<Instant> {
        let limit = if self.is_over() { self.away.max(AWAY) } else { self.away };
        self.alone_since.map(|since| since + limit)
    }

    /// Ends a step that was killed because it was abandoned.
    pub fn abandon(&mut self) {
        self.finish(StepAnswer::Failed(StepFailure::new(FailureKind::Abandoned, 0, "step")));
    }

    /// Ends the step for its hosts.
    fn finish(&mut self, end: StepAnswer) {
        let mut limits = limit_events_since(&self.before);
        if end != StepAnswer::Exited(0) {
            let directory: &[u8] = if self.directory.is_empty() { b"." } else { &self.directory };
            limits.is_disk_full = is_full(b"/") || is_full(directory);
        }
        self.phase =
            KeeperPhase::Over(StepEvent::Ended { offset: self.backlog.end(), limits, end });
        self.alone_since = None;
    }

    /// Ends the step once its output was read, and sends hosts what they lack. `is_closed` is set if
    /// all write ends of the output are closed.
    pub fn serve(&mut self, is_closed: bool) {
        self.yields.clear();
        if let KeeperPhase::Draining { end, drain } = &self.phase
            && (is_closed || (drain.is_over() && self.backlog.has_room()))
        {
            let end = end.clone();
            self.finish(end);
        }
        let end = match &self.phase {
            KeeperPhase::Over(end) => Some(end),
            _ => None,
        };
        self.clients.pump(&self.backlog, self.is_started, end);
        let alone_since = self.alone_since.unwrap_or_else(Instant::now);
        self.alone_since = (!self.clients.is_attached()).then_some(alone_since);
    }

    /// Appends poll entries: for messages of other supervisors, for both pipes of the output, and for
    /// hosts. In this order: a host that is lost before a message is lost in the same result.
    pub fn push_poll_entries(
        &self,
        control: BorrowedFd<'_>,
        pipes: &[Option<File>; 2],
        entries: &mut Vec<PollFd>,
    ) {
        entries.push(PollFd::new(control, POLLIN));
        for pipe in pipes {
            let pipe = pipe.as_ref().filter(|_| self.backlog.has_room());
            entries.push(PollFd::input(pipe.map(File::as_fd)));
        }
        self.clients.push_poll_entries(entries);
    }

    pub fn deadline(&self) -> Option<Instant> {
        let drain = match &self.phase {
            KeeperPhase::Draining { drain, .. } => Some(drain.ends_at()),
            _ => None,
        };
        [drain, self.alone_until()].into_iter().flatten().min()
    }

    /// Reads output, requests of hosts, and a message of another supervisor; returns the requests that
    /// the supervisor has to obey.
    pub fn receive(
        &mut self,
        control: BorrowedFd<'_>,
        pipes: &mut [Option<File>; 2],
        entries: &[PollFd],
    ) -> Vec<StepRequest> {
        self.read_pipes(pipes, [1, 2].map(|at: usize| entries[at].is_readable()));
        let mut obeyed = Vec::new();
        for request in self.clients.read_requests(&entries[3..]) {
            match request {
                StepRequest::Received(offset) => {
                    self.is_known |= self.is_over() && offset > self.backlog.end();
                    self.backlog.forget(offset);
                }
                request if matches!(self.phase, KeeperPhase::Running) => obeyed.push(request),
                _ => {}
            }
        }
        if entries[0].is_readable() {
            self.receive_message(control);
        }
        obeyed
    }

    fn read_pipes(&mut self, pipes: &mut [Option<File>; 2], ready: [bool; 2]) {
        let has_room = self.backlog.has_room();
        let mut buffer = [0; MAX_OUTPUT_BYTES];
        let mut has_read = !has_room;
        for ((pipe, stream), is_ready) in pipes.iter_mut().zip(OutputStream::ALL).zip(ready) {
            let Some(file) = pipe.as_mut().filter(|_| is_ready) else { continue };
            match file.read(&mut buffer) {
                Ok(count) if count > 0 => {
                    self.backlog.append(stream, &buffer[..count]);
                    has_read = true;
                }
                Err(error) if os::is_temporary(&error) => {}
                _ => *pipe = None,
            }
        }
        if let KeeperPhase::Draining { drain, .. } = &mut self.phase
            && has_read
        {
            match has_room {
                true => drain.prolong(),
                // The time limits do not apply while there is no room.
                false => *drain = Drain::start(),
            }
        }
    }

    /// Receives a message of another supervisor: [`YIELD`] with a pipe, or an attach request without a step, with the
    /// connection of its host.
    fn receive_message(&mut self, control: BorrowedFd<'_>) {
        let (mut bytes, mut descriptors) = ([0; MAX_MESSAGE_BYTES], Vec::new());
        let Ok(count) = os::receive(control, &mut bytes, &mut descriptors) else { return };
        if bytes[..count] == YIELD {
            self.yields.append(&mut descriptors);
            return;
        }
        let mut frames = FrameBuffer::new(MAX_MESSAGE_BYTES);
        frames.push(&bytes[..count]);
        if let Ok(Some(StepRequest::Attach(attach))) = frames.decode_next(StepRequest::decode)
            && attach.id == self.id
            && let Some(host) = descriptors.pop()
        {
            self.attach(host, attach.from);
        }
    }
}
