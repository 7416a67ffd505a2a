//! The process that keeps a step: host of the step's supervisor, and there for the step's own hosts as
//! they come, go, and come again.
//!
//! It is a child of the first process, as supervisors are: no exec's end is its end, and the first process
//! knows it from what a step leaves behind. There is one for each id, since one makes the directory that
//! has the id as its name. It ends with the step when a host has received all that was written, or when none
//! came for some time; until then it reads what the step writes as far as there is room for it (`backlog`),
//! and the step waits if there is none. If it is killed, the step is: the connection to its supervisor
//! ends.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use crate::backlog::Backlog;
use crate::clients::{Clients, Heard};
use crate::drain::Drain;
use crate::frames::journal::{Attach, JournalRequest, MAX_OUTPUT_BYTES, OutputStream, StepEvent};
use crate::frames::{Answer, Failure, FailureKind, Request, Step};
use crate::os::{self, POLLERR, POLLHUP, POLLIN, PollFd};
use crate::place::{Place, StepPlace};
use crate::supervised::{Supervised, Supervision};

/// How long others, whom nobody is attached to, have to kill their steps before this one begins.
const YIELDED_WITHIN: Duration = Duration::from_secs(8);
/// How often it is tried again to write what there is no room for on the disk.
const AGAIN: Duration = Duration::from_millis(200);

/// How steps are kept.
pub struct Rules {
    pub place: Place,
    /// How long without a host.
    pub away: Duration,
}

/// Keeps a step that a host has asked for, unless there was one of its id.
pub fn run(rules: &Rules, attach: Attach, host: OwnedFd) {
    let Attach { id, from, step } = attach;
    let fail = |kind, errno| {
        let end = Answer::Failed(failure(kind, errno, "step"));
        os::send_all(host.as_fd(), &StepEvent::Ended { offset: 0, end }.encode());
    };
    let Some(step) = step else { return fail(FailureKind::Keeper, 0) };
    let (place, listener) = match rules.place.publish(&id) {
        Ok(Some(published)) => published,
        // Whoever sees the connection end looks for the other one.
        Ok(None) => return,
        Err(error) => return fail(FailureKind::Setup, error.raw_os_error().unwrap_or_default()),
    };
    let others = yield_others(&rules.place, &place);
    let mut clients = Clients::default();
    os::send_all(host.as_fd(), &StepEvent::Heartbeat.encode());
    clients.attach(host.into(), from);
    let keeper = Keeper {
        rules,
        backlog: Backlog::new(place.directory()),
        place,
        listener,
        clients,
        phase: Phase::Waiting { step, others, until: Instant::now() + YIELDED_WITHIN },
        pipes: [const { None }; 2],
        is_started: false,
        is_abandoned: false,
        is_end_written: false,
        alone_since: None,
        try_again_at: None,
    };
    keeper.run();
}

fn failure(kind: FailureKind, errno: i32, path: &str) -> Failure {
    Failure { kind, errno, path: path.as_bytes().to_vec(), found: Vec::new() }
}

/// Asks the keepers of other steps to end, unless a host is attached to them; returns the connections to
/// those that have not ended.
fn yield_others(place: &Place, own: &StepPlace) -> Vec<UnixStream> {
    let Ok(request) = JournalRequest::Yield.encode() else { return Vec::new() };
    let others = place.all_steps().into_iter().filter(|other| other != own);
    let connected = others.filter_map(|other| UnixStream::connect(other.socket()).ok());
    connected.filter(|socket| os::send_all(socket.as_fd(), &request)).collect()
}

enum Phase {
    /// Before the step, for others to yield.
    Waiting {
        step: Step,
        others: Vec<UnixStream>,
        until: Instant,
    },
    Running(Supervised),
    /// The program has ended: what else was written is read.
    Draining {
        supervised: Option<Supervised>,
        end: Answer,
        drain: Drain,
    },
    Over {
        end: StepEvent,
    },
}

struct Keeper<'r> {
    rules: &'r Rules,
    place: StepPlace,
    listener: UnixListener,
    clients: Clients,
    backlog: Backlog,
    phase: Phase,
    /// What the step writes to, until nobody can any more.
    pipes: [Option<File>; 2],
    is_started: bool,
    /// Whether it was killed because nobody was there.
    is_abandoned: bool,
    is_end_written: bool,
    /// Since when no host is attached.
    alone_since: Option<Instant>,
    /// When there may be room on the disk again.
    try_again_at: Option<Instant>,
}

impl Keeper<'_> {
    fn run(mut self) {
        while !self.is_done() {
            self.begin();
            self.end();
            let end = match &self.phase {
                Phase::Over { end } => Some(end),
                _ => None,
            };
            self.clients.pump(&self.backlog, self.is_started, end);
            self.wait();
            self.check_alone();
        }
        self.place.remove_socket();
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. })
    }

    /// Returns whether nobody will ask any more for what is not in the directory.
    fn is_done(&self) -> bool {
        let is_late = self.alone_since.is_some_and(|since| since.elapsed() >= self.rules.away);
        let is_known = self.is_end_written && self.backlog.is_empty() && self.clients.know_end();
        self.is_over() && (is_known || is_late)
    }

    /// Begins the step, once the others have yielded.
    fn begin(&mut self) {
        let Phase::Waiting { step, others, until } = &mut self.phase else { return };
        others.retain(|other| !has_ended(other));
        if !others.is_empty() && Instant::now() < *until {
            return;
        }
        self.phase = match Supervised::start(&self.rules.place, std::mem::take(step)) {
            Ok((supervised, pipes)) => {
                self.pipes = pipes.map(Some);
                Phase::Running(supervised)
            }
            Err(failure) => draining(None, Answer::Failed(failure)),
        };
    }

    /// Sees to the end of the step, once its output has been read.
    fn end(&mut self) {
        if let Phase::Draining { end, drain, .. } = &mut self.phase {
            let is_closed = self.pipes.iter().all(Option::is_none);
            if !is_closed && (!drain.is_over() || self.try_again_at.is_some()) {
                return;
            }
            let end = match self.is_abandoned {
                true => Answer::Failed(failure(FailureKind::Abandoned, 0, "step")),
                false => end.clone(),
            };
            let end = StepEvent::Ended { offset: self.backlog.end(), end };
            // With the connection to its supervisor: what still comes goes to the log.
            self.phase = Phase::Over { end };
            self.pipes = [const { None }; 2];
        }
        if let Phase::Over { end } = &self.phase
            && !self.is_end_written
        {
            self.is_end_written = self.place.write_end(end).is_ok();
            self.try_again_at = (!self.is_end_written).then(|| Instant::now() + AGAIN);
        }
    }

    /// Waits until something happens, and does it.
    fn wait(&mut self) {
        let is_over = self.is_over();
        let has_room = is_over || self.backlog.has_room();
        if !is_over {
            // If it is the disk's, nobody says when there is.
            self.try_again_at = (!has_room).then(|| Instant::now() + AGAIN);
        }
        let mut entries = vec![PollFd::new(self.listener.as_fd(), POLLIN), PollFd::none()];
        if let Phase::Running(supervised) = &self.phase {
            entries[1] = supervised.poll_entry();
        }
        for pipe in &self.pipes {
            let pipe = pipe.as_ref().filter(|_| has_room);
            entries.push(pipe.map_or(PollFd::none(), |pipe| PollFd::new(pipe.as_fd(), POLLIN)));
        }
        let clients = entries.len();
        self.clients.push_poll_entries(&mut entries);
        if let Phase::Waiting { others, .. } = &self.phase {
            entries.extend(others.iter().map(|other| PollFd::new(other.as_fd(), POLLIN)));
        }
        let timeout = self.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        os::poll(&mut entries, timeout);
        let happened = |entry: &PollFd| entry.is(POLLIN | POLLHUP | POLLERR);
        self.read_pipes([happened(&entries[2]), happened(&entries[3])], has_room);
        self.hear_clients(&entries[clients..]);
        self.supervise();
        if happened(&entries[0])
            && let Ok(socket) = os::accept(self.listener.as_fd())
        {
            self.clients.accept(socket.into());
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let phase = match &self.phase {
            Phase::Waiting { until, .. } => Some(*until),
            Phase::Running(supervised) => supervised.deadline(),
            Phase::Draining { drain, .. } => Some(drain.ends_at()),
            Phase::Over { .. } => None,
        };
        let is_draining = matches!(self.phase, Phase::Draining { .. });
        let waits = self.is_over() || !(is_draining || self.is_abandoned);
        let alone = self.alone_since.filter(|_| waits);
        let alone = alone.map(|since| since + self.rules.away);
        [phase, alone, self.try_again_at].into_iter().flatten().min()
    }

    /// Reads what the step wrote.
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
                Err(error) if is_temporary(&error) => {}
                _ => *pipe = None,
            }
        }
        if let Phase::Draining { drain, .. } = &mut self.phase
            && has_read
        {
            match has_room {
                true => drain.prolong(),
                // What cannot be read is not late.
                false => *drain = Drain::start(),
            }
        }
    }

    /// Does what hosts ask for.
    fn hear_clients(&mut self, entries: &[PollFd]) {
        for heard in self.clients.hear(entries, self.is_over()) {
            match heard {
                Heard::Received(offset) => self.backlog.forget(offset),
                Heard::Request(request) => {
                    if let Phase::Running(supervised) = &mut self.phase {
                        supervised.ask(&request);
                    } else if matches!(self.phase, Phase::Waiting { .. }) {
                        // Nothing has begun that a signal could be for: it does not begin any more.
                        let signal = match request {
                            Request::Signal(signal) => u8::try_from(signal).unwrap_or(9),
                            _ => 9,
                        };
                        self.phase = draining(None, Answer::Signalled(signal));
                    }
                }
                Heard::Yield => self.abandon(),
            }
        }
    }

    /// Takes what the supervisor says.
    fn supervise(&mut self) {
        let Phase::Running(supervised) = &mut self.phase else { return };
        match supervised.go_on() {
            Supervision::Running { is_started } => self.is_started |= is_started,
            Supervision::Ended(end) => {
                let running = std::mem::replace(&mut self.phase, draining(None, end.clone()));
                if let Phase::Running(supervised) = running {
                    // As long as its output is read: without a host, the supervisor reads it.
                    self.phase = draining(Some(supervised), end);
                }
            }
        }
    }

    /// Kills a step that nobody has asked for in a long time.
    fn check_alone(&mut self) {
        match (self.clients.is_attached(), self.alone_since) {
            (true, _) => self.alone_since = None,
            (false, None) => self.alone_since = Some(Instant::now()),
            (false, Some(since)) if since.elapsed() >= self.rules.away => self.abandon(),
            _ => {}
        }
    }

    fn abandon(&mut self) {
        if self.is_abandoned {
            return;
        }
        match &mut self.phase {
            Phase::Waiting { .. } => self.phase = draining(None, Answer::Signalled(9)),
            Phase::Running(supervised) => supervised.ask(&Request::Kill),
            Phase::Draining { .. } | Phase::Over { .. } => return,
        }
        self.is_abandoned = true;
    }
}

fn draining(supervised: Option<Supervised>, end: Answer) -> Phase {
    Phase::Draining { supervised, end, drain: Drain::start() }
}

/// Returns whether the other end of a connection has closed it.
fn has_ended(socket: &UnixStream) -> bool {
    let mut entries = [PollFd::new(socket.as_fd(), POLLIN)];
    os::poll(&mut entries, Some(Duration::ZERO));
    entries[0].is(POLLIN | POLLHUP | POLLERR)
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
