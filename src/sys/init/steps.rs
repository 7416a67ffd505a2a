//! The first process of a job container: whoever connects to its socket has a step started, each under
//! a supervisor of its own.

use std::fs::File;
use std::io::Read as _;
use std::mem;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use crate::frames::{Answer, DEAD_WITHIN_SECONDS, Failure, FailureKind, VERSIONS};
use crate::keeper::{self, Rules};
use crate::os::{
    self, Fork, POLLERR, POLLHUP, POLLIN, POLLRDHUP, PollFd, SIGCHLD, SIGCONT, SIGHUP, SIGINT,
    SIGKILL, SIGQUIT, SIGTERM, Signals, Status, Waited,
};
use crate::single;
use crate::supervisor::{self, Connection};
use crate::tree::Tree;

/// How many may wait for a step that was cancelled to die.
const MAX_WAITING: usize = 64;
/// How long a supervisor has to kill what its host left, before it is killed itself.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(3);
/// How often a supervisor that should be killing is continued, whatever its step does to it.
const CONTINUE_EVERY: Duration = Duration::from_millis(50);

/// What ends the first process.
const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGQUIT, SIGHUP];

/// What a first process does besides.
#[derive(Default)]
pub struct Additions {
    /// A program that gets the signals, and at whose end we end.
    pub program: Option<i32>,
    /// How steps are kept for hosts that may go; none are if there are none.
    pub rules: Option<Rules>,
}

/// Starts steps until a signal to end, or until the program has; returns the exit code.
pub fn serve(listener: OwnedFd, additions: Additions) -> i32 {
    os::block(Signals::ALL);
    os::become_reaper();
    os::close_on_execution();
    let watched = match additions.program {
        None => Signals::of(&[&ENDING[..], &[SIGCHLD]].concat()),
        Some(_) => Signals::ALL,
    };
    let Ok(signals) = os::signal_descriptor(watched) else { return 1 };
    let mut steps = Steps {
        tree: Tree::open(),
        listener: Some(listener),
        signals: signals.into(),
        running: Vec::new(),
        waiting: Vec::new(),
        additions,
        code: None,
    };
    os::forget_start();
    let code = loop {
        steps.take_signals();
        steps.collect();
        if let Some(code) = steps.code {
            break code;
        }
        steps.look();
        steps.begin();
        steps.wait();
    };
    // The processes of a PID namespace end with the first of it.
    if os::process_id() != 1 {
        steps.kill_except(&[]);
    }
    code
}

/// A supervisor.
struct Running {
    pid: i32,
    /// Until it has said how its step ended.
    open: Option<Open>,
}

struct Open {
    /// Held to see whether the host is still there.
    socket: OwnedFd,
    answered: File,
    /// Since when the host is not.
    lost: Option<Instant>,
}

impl Open {
    /// Returns whether the last answer was sent, or nearly.
    fn is_answered(&mut self) -> bool {
        matches!(self.answered.read(&mut [0]), Ok(1))
    }
}

struct Steps {
    tree: Tree,
    listener: Option<OwnedFd>,
    signals: File,
    running: Vec<Running>,
    /// Connections, and how long each waits at most.
    waiting: Vec<(OwnedFd, Instant)>,
    additions: Additions,
    /// Once it is to end.
    code: Option<i32>,
}

impl Steps {
    /// Takes the signals that came: those to end end us, unless there is a program that they are for.
    fn take_signals(&mut self) {
        const SIGNAL_BYTES: usize = 128;
        let mut bytes = [0; SIGNAL_BYTES];
        while matches!(self.signals.read(&mut bytes), Ok(SIGNAL_BYTES)) {
            match (i32::from(bytes[0]), self.additions.program) {
                (SIGCHLD, _) => {}
                (signal, Some(program)) => drop(os::kill(program, signal)),
                (signal, None) if ENDING.contains(&signal) => self.code = Some(0),
                _ => {}
            }
        }
    }

    /// Takes what ended: supervisors, and what nobody else waits for.
    fn collect(&mut self) {
        while let Waited::Ended(pid, status) = os::wait_any() {
            self.ended(pid, status);
        }
    }

    fn ended(&mut self, pid: i32, status: Status) {
        if self.additions.program == Some(pid) {
            self.code = Some(single::code(status));
        }
        let Some(at) = self.running.iter().position(|running| running.pid == pid) else { return };
        let Some(mut open) = self.running.swap_remove(at).open else { return };
        let is_killed = matches!(status, Status::Signalled(_));
        if is_killed && !open.is_answered() {
            // What it watched over are children of ours now.
            let supervisors = self.running.iter().map(|running| running.pid);
            let supervisors: Vec<_> = supervisors.chain(self.additions.program).collect();
            self.kill_except(&supervisors);
            fail(&open.socket, FailureKind::Watcher, 0);
        }
    }

    /// Kills everything but these processes and what is below them.
    fn kill_except(&mut self, supervisors: &[i32]) {
        let mut ended = Vec::new();
        self.tree.kill(os::process_id(), supervisors, || {
            let is_alone = loop {
                match os::wait_any() {
                    Waited::Ended(pid, status) => ended.push((pid, status)),
                    Waited::NoChildren => break true,
                    // With nobody to be left alive, all of them count.
                    Waited::Running if supervisors.is_empty() => return true,
                    Waited::Running => break false,
                }
            };
            let me = os::process_id();
            // Twice: one whose parent ends meanwhile is missed once.
            let is_seen = || self.tree.has_children(me, supervisors);
            !is_alone && (is_seen() || is_seen())
        });
        for (pid, status) in ended {
            self.ended(pid, status);
        }
    }

    /// Looks which steps have ended, and which have lost their host before.
    fn look(&mut self) {
        for running in &mut self.running {
            let Some(open) = &mut running.open else { continue };
            if open.is_answered() {
                running.open = None;
                continue;
            }
            let mut entries = [PollFd::new(open.socket.as_fd(), POLLRDHUP)];
            os::poll(&mut entries, Some(Duration::ZERO));
            let is_lost = entries[0].is(POLLHUP | POLLRDHUP | POLLERR);
            let lost = is_lost.then(|| *open.lost.get_or_insert_with(Instant::now));
            let is_late = lost.is_some_and(|lost| lost.elapsed() > SUPERVISOR_PATIENCE);
            // Its own step may have stopped it, of which a signal tells us.
            let _ = os::kill(running.pid, if is_late { SIGKILL } else { SIGCONT });
        }
    }

    /// Begins the steps that wait, unless one that has lost its host is not dead.
    fn begin(&mut self) {
        let is_lost = |running: &Running| running.open.as_ref().is_some_and(|o| o.lost.is_some());
        let is_busy = self.running.iter().any(is_lost);
        for (socket, until) in mem::take(&mut self.waiting) {
            if is_busy && Instant::now() < until {
                self.waiting.push((socket, until));
            } else {
                self.supervise(socket, is_busy);
            }
        }
    }

    fn supervise(&mut self, socket: OwnedFd, is_busy: bool) {
        let made = os::pipe().and_then(|pipe| Ok((pipe, os::duplicate()?)));
        match made {
            Err(error) => {
                let hello = Answer::Hello(VERSIONS).encode();
                os::send_all(socket.as_fd(), &hello);
                fail(&socket, FailureKind::Process, error.raw_os_error().unwrap_or_default());
            }
            Ok(((_, answered), Fork::Child)) => {
                // What is of other steps, and of those to come.
                self.running.clear();
                self.waiting.clear();
                self.listener = None;
                let keeps = self.additions.rules.is_some();
                let connection = Connection { socket, answered, is_busy, keeps };
                let kept = supervisor::run(&self.tree, connection);
                if let (Some((attach, socket)), Some(rules)) = (kept, &self.additions.rules) {
                    keeper::run(rules, *attach, socket);
                }
                os::exit(0);
            }
            Ok(((answered, _), Fork::Parent(pid))) => {
                let open = Open { socket, answered: answered.into(), lost: None };
                self.running.push(Running { pid, open: Some(open) });
            }
        }
    }

    fn wait(&mut self) {
        let accepts = self.waiting.len() < MAX_WAITING;
        let listener = self.listener.as_ref().filter(|_| accepts);
        let mut entries = vec![
            PollFd::new(self.signals.as_fd(), POLLIN),
            listener.map_or(PollFd::none(), |listener| PollFd::new(listener.as_fd(), POLLIN)),
        ];
        let mut is_lost = false;
        for open in self.running.iter().filter_map(|running| running.open.as_ref()) {
            entries.push(PollFd::new(open.answered.as_fd(), POLLIN));
            if open.lost.is_none() {
                entries.push(PollFd::new(open.socket.as_fd(), POLLRDHUP));
            }
            is_lost |= open.lost.is_some();
        }
        os::poll(&mut entries, is_lost.then_some(CONTINUE_EVERY));
        if let Some(listener) = listener.filter(|_| entries[1].is(POLLIN))
            && let Ok(socket) = os::accept(listener.as_fd())
        {
            let until = Instant::now() + Duration::from_secs(DEAD_WITHIN_SECONDS);
            self.waiting.push((socket, until));
        }
    }
}

fn fail(socket: &OwnedFd, kind: FailureKind, errno: i32) {
    let failure = Failure { kind, errno, path: Vec::new(), found: Vec::new() };
    os::send_all(socket.as_fd(), &Answer::Failed(failure).encode());
}
