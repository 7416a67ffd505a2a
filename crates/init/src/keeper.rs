//! The keeper of a step: a process that starts the step as a host does, buffers its output, and
//! forwards it to the step's actual hosts, which may disconnect and return.
//!
//! It is a child of the first process, as supervisors are: it does not end with an exec, and the
//! first process can tell it from a step's orphans. There is one for each id, because it creates
//! the directory named after the id. It ends after the step, once a host has received all output or
//! none was attached for some time; until then it reads the step's output as far as there is room
//! for it (`backlog`), and the step blocks if there is none. If it is killed, so is the step: the
//! connection to its supervisor closes.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::agent_dir::{AgentDirectory, StepDirectory};
use crate::backlog::Backlog;
use crate::clients::Clients;
use crate::drain::Drain;
use crate::frames::journal::{
    AttachRequest, LimitEvents, MAX_OUTPUT_BYTES, OutputStream, StepEvent,
};
use crate::frames::{FailureKind, StepAnswer, StepFailure, StepRequest};
use crate::limits::is_full;
use crate::os::{self, POLLERR, POLLHUP, POLLIN, PollFd};
use crate::supervised::{SupervisedStep, SupervisionState};

/// Maximum time to wait for the keepers without a host, which have to kill their steps before
/// another step begins.
const YIELDED_WITHIN: Duration = Duration::from_secs(2);
/// Interval of attempts to record the end while the disk is full.
const AGAIN: Duration = Duration::from_millis(200);

/// Rules for steps that outlive the connection of their host.
pub struct KeepRules {
    pub agent_dir: AgentDirectory,
    /// Maximum time without an attached host, after which the step is killed.
    pub away: Duration,
}

/// Runs the keeper of a step that a host has requested, until the keeper is done. Does nothing if
/// the step's id was used before.
pub fn run(rules: &KeepRules, attach: AttachRequest, host: OwnedFd) {
    let AttachRequest { id, from, step } = attach;
    let fail = |kind, errno| {
        let end = StepEvent::failed(0, StepFailure::new(kind, errno, "step"));
        os::send_all(host.as_fd(), &end.encode());
    };
    let Some(step) = step else { return fail(FailureKind::Keeper, 0) };
    let (step_dir, listener) = match rules.agent_dir.publish(&id) {
        Ok(Some(published)) => published,
        // The host sees the connection end, and connects to the other keeper.
        Ok(None) => return,
        Err(error) => return fail(FailureKind::Setup, error.raw_os_error().unwrap_or_default()),
    };
    yield_others(&rules.agent_dir, &step_dir);
    let mut clients = Clients::default();
    os::send_all(host.as_fd(), &StepEvent::Heartbeat.encode());
    clients.attach(host.into(), from);
    let (directory, before) = (step.directory.clone(), LimitEvents::now());
    let (phase, pipes) = match SupervisedStep::start(&rules.agent_dir, step) {
        Ok((supervised, pipes)) => (KeeperPhase::Running(supervised), pipes.map(Some)),
        Err(failure) => (drain_phase(None, StepAnswer::Failed(failure)), [const { None }; 2]),
    };
    let keeper = StepKeeper {
        rules,
        backlog: Backlog::default(),
        step_dir,
        listener,
        clients,
        phase,
        pipes,
        directory,
        before,
        is_started: false,
        is_end_written: false,
        alone_since: None,
        try_again_at: None,
    };
    keeper.run();
}

/// Asks the keepers of other steps to kill steps without an attached host, and waits until they
/// have: the first process begins no step while an abandoned one is alive.
fn yield_others(agent_dir: &AgentDirectory, own: &StepDirectory) {
    let Ok(request) = StepRequest::Yield.encode() else { return };
    let others = agent_dir.all_steps().into_iter().filter(|other| other != own);
    let connected = others.filter_map(|other| UnixStream::connect(other.socket()).ok());
    let asked = connected.filter(|socket| os::send_all(socket.as_fd(), &request));
    let asked: Vec<UnixStream> = asked.collect();
    let until = Instant::now() + YIELDED_WITHIN;
    for mut other in asked {
        let left = until.saturating_duration_since(Instant::now());
        let is_limited = other.set_read_timeout(Some(left.max(Duration::from_millis(1))));
        // Nothing is sent: the connection ends, or the time is over.
        let _ = is_limited.and_then(|()| other.read(&mut [0]));
    }
}

enum KeeperPhase {
    Running(SupervisedStep),
    /// The program has exited; further output is read.
    Draining {
        supervised: Option<SupervisedStep>,
        end: StepAnswer,
        drain: Drain,
    },
    Over {
        end: StepEvent,
    },
}

/// State of a keeper: the process that buffers a step's output, and forwards it to clients that may disconnect
/// and return.
struct StepKeeper<'r> {
    rules: &'r KeepRules,
    step_dir: StepDirectory,
    listener: UnixListener,
    clients: Clients,
    backlog: Backlog,
    phase: KeeperPhase,
    /// The step's output, until all write ends are closed.
    pipes: [Option<File>; 2],
    /// The step's working directory; empty for the container's.
    directory: Vec<u8>,
    /// Events of the container's limits before the step, which are subtracted from those at its
    /// end.
    before: LimitEvents,
    is_started: bool,
    is_end_written: bool,
    /// Time since which no host is attached; `None` while one is.
    alone_since: Option<Instant>,
    /// Time of the next attempt to record the end; `None` unless the last one failed.
    try_again_at: Option<Instant>,
}

impl StepKeeper<'_> {
    fn run(mut self) {
        loop {
            self.end();
            if self.is_done() {
                break;
            }
            let end = match &self.phase {
                KeeperPhase::Over { end } => Some(end),
                _ => None,
            };
            self.clients.pump(&self.backlog, self.is_started, end);
            self.wait();
            self.check_alone();
        }
        self.step_dir.remove_socket();
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, KeeperPhase::Over { .. })
    }

    /// Returns whether the step is over, and all hosts have its recorded end and output, or were away too long.
    fn is_done(&self) -> bool {
        let is_late = self.alone_since.is_some_and(|since| since.elapsed() >= self.rules.away);
        let is_known = self.is_end_written && self.backlog.is_empty() && self.clients.know_end();
        self.is_over() && (is_known || is_late)
    }

    /// Handles the end of the step, once its output has been read.
    fn end(&mut self) {
        if let KeeperPhase::Draining { end, drain, .. } = &self.phase {
            let is_closed = self.pipes.iter().all(Option::is_none);
            if !is_closed && (!drain.is_over() || !self.backlog.has_room()) {
                return;
            }
            let end = end.clone();
            self.finish(end);
        }
        if let KeeperPhase::Over { end } = &self.phase
            && !self.is_end_written
        {
            self.is_end_written = self.step_dir.write_end(end).is_ok();
            self.try_again_at = (!self.is_end_written).then(|| Instant::now() + AGAIN);
        }
    }

    /// Ends the step for its hosts, and closes the connection to its supervisor. The supervisor
    /// then kills the step if it has not ended, and forwards further output of remaining processes
    /// to the log.
    fn finish(&mut self, end: StepAnswer) {
        let mut limits = LimitEvents::now().since(self.before);
        if end != StepAnswer::Exited(0) {
            let directory: &[u8] = if self.directory.is_empty() { b"." } else { &self.directory };
            limits.is_disk_full = is_full(b"/") || is_full(directory);
        }
        let end = StepEvent::Ended { offset: self.backlog.end(), limits, end };
        self.phase = KeeperPhase::Over { end };
        self.pipes = [const { None }; 2];
    }

    /// Waits for events, and handles them.
    fn wait(&mut self) {
        let has_room = self.backlog.has_room();
        let mut entries = vec![PollFd::new(self.listener.as_fd(), POLLIN), PollFd::none()];
        if let KeeperPhase::Running(supervised) = &self.phase {
            entries[1] = supervised.poll_entry();
        }
        for pipe in &self.pipes {
            let pipe = pipe.as_ref().filter(|_| has_room);
            entries.push(pipe.map_or(PollFd::none(), |pipe| PollFd::new(pipe.as_fd(), POLLIN)));
        }
        let clients = entries.len();
        self.clients.push_poll_entries(&mut entries);
        let timeout = self.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        os::poll(&mut entries, timeout);
        let happened = |entry: &PollFd| entry.is(POLLIN | POLLHUP | POLLERR);
        self.read_pipes([happened(&entries[2]), happened(&entries[3])], has_room);
        self.read_client_requests(&entries[clients..]);
        self.supervise();
        if happened(&entries[0])
            && let Ok(socket) = os::accept(self.listener.as_fd())
        {
            self.clients.accept(socket.into());
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            KeeperPhase::Running(supervised) => supervised.deadline(),
            KeeperPhase::Draining { drain, .. } => Some(drain.ends_at()),
            KeeperPhase::Over { .. } => None,
        };
        let alone = self.alone_since.map(|since| since + self.rules.away);
        [phase, alone, self.try_again_at].into_iter().flatten().min()
    }

    fn read_pipes(&mut self, ready: [bool; 2], has_room: bool) {
        let mut buffer = [0; MAX_OUTPUT_BYTES];
        let mut has_read = !has_room;
        for ((pipe, stream), is_ready) in self.pipes.iter_mut().zip(OutputStream::ALL).zip(ready) {
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

    fn read_client_requests(&mut self, entries: &[PollFd]) {
        for request in self.clients.read_requests(entries, self.is_over()) {
            match request {
                StepRequest::Received(offset) => self.backlog.forget(offset),
                StepRequest::Signal(_) | StepRequest::Kill => self.ask(&request),
                StepRequest::Yield => self.abandon_step(),
                // Handled by `Clients`, or only a sign of life.
                _ => {}
            }
        }
    }

    fn ask(&mut self, request: &StepRequest) {
        if let KeeperPhase::Running(supervised) = &mut self.phase {
            supervised.ask(request);
        }
    }

    /// Handles answers of the supervisor.
    fn supervise(&mut self) {
        let KeeperPhase::Running(supervised) = &mut self.phase else { return };
        match supervised.exchange_data() {
            SupervisionState::Running { is_started } => self.is_started |= is_started,
            SupervisionState::Ended(end) => {
                let running = std::mem::replace(&mut self.phase, drain_phase(None, end.clone()));
                if let KeeperPhase::Running(supervised) = running {
                    // Kept while output is read: without a host, the supervisor would read it.
                    self.phase = drain_phase(Some(supervised), end);
                }
            }
        }
    }

    /// Kills a step that had no host for too long.
    fn check_alone(&mut self) {
        match (self.clients.is_attached(), self.alone_since) {
            (true, _) => self.alone_since = None,
            (false, None) => self.alone_since = Some(Instant::now()),
            (false, Some(since)) if since.elapsed() >= self.rules.away => self.abandon_step(),
            _ => {}
        }
    }

    fn abandon_step(&mut self) {
        if !self.is_over() {
            self.finish(StepAnswer::Failed(StepFailure::new(FailureKind::Abandoned, 0, "step")));
        }
    }
}

fn drain_phase(supervised: Option<SupervisedStep>, end: StepAnswer) -> KeeperPhase {
    KeeperPhase::Draining { supervised, end, drain: Drain::start() }
}
