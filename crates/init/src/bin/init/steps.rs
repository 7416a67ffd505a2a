//! The first process of a job container: starts a step for each client of its socket, under its own
//! supervisor.

use std::fs::File;
use std::io::Read as _;
use std::mem;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use crate::keeper::KeeperSettings;
use crate::os::{
    self, ForkResult, POLLERR, POLLHUP, POLLIN, POLLRDHUP, PollFd, SIGCHLD, SIGCONT, SIGHUP,
    SIGINT, SIGKILL, SIGQUIT, SIGTERM, SignalSet,
};
use crate::single;
use crate::supervisor::{self, HostConnection, KEPT, Keeping};
use crate::tree::ProcessTree;
use oci_hooks_init::frames::{DEAD_WITHIN_SECONDS, FailureKind, StepAnswer, StepFailure, VERSIONS};
use oci_hooks_init::launch::ProcessExit;
use rustix::net::{SocketFlags, accept_with};

/// Limit of connections that wait for a cancelled step to die.
const MAX_WAITING: usize = 64;
/// Time for a supervisor to kill the step of a lost host, before it is killed itself.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(22);
/// Interval at which a supervisor that has to kill its step gets `SIGCONT`, in case the step has
/// stopped it.
const CONTINUE_EVERY: Duration = Duration::from_millis(50);

/// Signals that end the first process.
const ENDING: [i32; 4] = [SIGTERM, SIGINT, SIGQUIT, SIGHUP];

/// Additional tasks of a first process.
#[derive(Default)]
pub struct ServeOptions {
    /// Process id of the container's program. Signals are forwarded to it, and this process exits
    /// with it.
    pub program: Option<i32>,
    /// Settings of steps that outlive the connection of their host; `None` if steps are killed with
    /// it.
    pub settings: Option<KeeperSettings>,
}

/// Starts steps until a terminating signal, or until the program exits; returns the exit code.
pub fn serve(listener: OwnedFd, additions: ServeOptions) -> i32 {
    os::block(SignalSet::all());
    os::become_reaper();
    os::close_on_execution();
    let watched = match additions.program {
        None => SignalSet::of(&[&ENDING[..], &[SIGCHLD]].concat()),
        Some(_) => SignalSet::all(),
    };
    let Ok(signals) = os::signal_descriptor(watched) else { return 1 };
    let mut steps = StepServer {
        tree: ProcessTree::open(),
        listener: Some(listener),
        signals: signals.into(),
        running: Vec::new(),
        waiting: Vec::new(),
        additions,
        signal_code: 0,
        code: None,
    };
    os::forget_start();
    let code = loop {
        steps.take_signals();
        steps.collect();
        if let Some(code) = steps.code {
            break code;
        }
        steps.check_steps();
        steps.begin();
        steps.wait();
    };
    // The kernel kills the processes of a PID namespace with the first one.
    if os::process_id() != 1 {
        steps.kill_except(&[]);
    }
    code
}

struct SupervisorProcess {
    pid: i32,
    /// Socket for messages of the supervisor, and to it.
    control: OwnedFd,
    /// The supervisor's step; `None` once its last answer is sent, or about to be.
    unanswered: Option<UnansweredStep>,
}

struct UnansweredStep {
    /// Copy of the connection to the host, to detect when the host disconnects; `None` if hosts may
    /// disconnect and return.
    host: Option<OwnedFd>,
    /// Time at which the host disconnected.
    lost: Option<Instant>,
}

impl SupervisorProcess {
    fn read_messages(&mut self) {
        let mut message = [0];
        while let Ok(1) = os::receive(self.control.as_fd(), &mut message, &mut Vec::new()) {
            match &mut self.unanswered {
                // The host may already be lost.
                Some(step) if message == KEPT => *step = UnansweredStep { host: None, lost: None },
                _ => self.unanswered = None,
            }
        }
    }

    /// Returns whether hosts may attach to the step, unless the supervisor is about to exit.
    fn may_be_kept(&self) -> bool {
        self.unanswered.as_ref().is_none_or(|step| step.host.is_none())
    }
}

struct StepServer {
    tree: ProcessTree,
    listener: Option<OwnedFd>,
    signals: File,
    running: Vec<SupervisorProcess>,
    waiting: Vec<(OwnedFd, Instant)>,
    additions: ServeOptions,
    /// Exit code for the last terminating signal, else 0.
    signal_code: i32,
    /// Exit code, set when the process should end.
    code: Option<i32>,
}

impl StepServer {
    /// Handles pending signals: a terminating one ends this process, unless there is a program to
    /// forward it to. The exit code is not 0 then: a kubelet that evicts a pod whose containers exit with 0 sets the
    /// phase `Succeeded`, and drops the reason `Evicted`.
    fn take_signals(&mut self) {
        const SIGNAL_BYTES: usize = 128;
        let mut bytes = [0; SIGNAL_BYTES];
        while matches!(self.signals.read(&mut bytes), Ok(SIGNAL_BYTES)) {
            let signal = i32::from(bytes[0]);
            let ends = ENDING.contains(&signal);
            if ends {
                self.signal_code = single::code(ProcessExit::Signalled(bytes[0]));
            }
            match self.additions.program {
                Some(program) if signal != SIGCHLD => drop(os::kill(program, signal)),
                None if ends => self.code = Some(self.signal_code),
                _ => {}
            }
        }
    }

    fn collect(&mut self) {
        while let Ok(Some((pid, exit))) = os::wait_any() {
            self.handle_end(pid, exit);
        }
    }

    fn handle_end(&mut self, pid: i32, exit: ProcessExit) {
        if self.additions.program == Some(pid) {
            self.code = Some(match single::code(exit) {
                0 => self.signal_code,
                code => code,
            });
        }
        let Some(at) = self.running.iter().position(|running| running.pid == pid) else { return };
        let mut ended = self.running.swap_remove(at);
        ended.read_messages();
        let Some(step) = ended.unanswered else { return };
        if matches!(exit, ProcessExit::Signalled(_)) {
            // The supervisor's processes are children of this process now.
            let supervisors = self.running.iter().map(|running| running.pid);
            let supervisors: Vec<_> = supervisors.chain(self.additions.program).collect();
            self.kill_except(&supervisors);
            if let Some(host) = &step.host {
                self.fail(host, FailureKind::Supervisor, 0);
            }
        }
    }

    /// Answers the host of a step that was not begun, or whose supervisor was killed.
    fn fail(&self, host: &OwnedFd, kind: FailureKind, errno: i32) {
        let keeps = self.additions.settings.is_some();
        let frame = supervisor::failure_frame(keeps, StepFailure::new(kind, errno, ""));
        os::send_all(host.as_fd(), &frame);
    }

    /// Kills all processes except supervisors and their descendants.
    fn kill_except(&mut self, supervisors: &[i32]) {
        let mut ended = Vec::new();
        self.tree.kill(os::process_id(), supervisors, || {
            let is_alone = loop {
                match os::wait_any() {
                    Ok(Some(end)) => ended.push(end),
                    Err(_) => break true,
                    // Without supervisors to spare, all children count.
                    Ok(None) if supervisors.is_empty() => return true,
                    Ok(None) => break false,
                }
            };
            let me = os::process_id();
            // Twice: a process whose parent exits meanwhile is missed once.
            let is_seen = || self.tree.has_children(me, supervisors);
            !is_alone && (is_seen() || is_seen())
        });
        for (pid, exit) in ended {
            self.handle_end(pid, exit);
        }
    }

    /// Reads the messages of supervisors, and notes which steps have lost their host. Kills a supervisor whose host has
    /// been lost for longer than [`SUPERVISOR_PATIENCE`], and continues the others, which their steps may have stopped.
    fn check_steps(&mut self) {
        for running in &mut self.running {
            running.read_messages();
            let is_late =
                running.unanswered.as_mut().is_some_and(|UnansweredStep { host, lost }| {
                    let Some(host) = host else { return false };
                    let mut entries = [PollFd::new(host.as_fd(), POLLRDHUP)];
                    os::poll(&mut entries, Some(Duration::ZERO));
                    entries[0].is(POLLHUP | POLLRDHUP | POLLERR)
                        && lost.get_or_insert_with(Instant::now).elapsed() > SUPERVISOR_PATIENCE
                });
            // The step may have stopped its supervisor, which `SIGCHLD` reports.
            let _ = os::kill(running.pid, if is_late { SIGKILL } else { SIGCONT });
        }
    }

    /// Begins the waiting steps, unless a step that has lost its host is still alive.
    fn begin(&mut self) {
        let is_lost = |running: &SupervisorProcess| {
            running.unanswered.as_ref().is_some_and(|step| step.lost.is_some())
        };
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
        let made = UnixDatagram::pair().and_then(|pair| Ok((pair, os::duplicate()?)));
        match made {
            Err(error) => {
                let hello = StepAnswer::Hello(VERSIONS).encode();
                os::send_all(socket.as_fd(), &hello);
                let errno = error.raw_os_error().unwrap_or_default();
                self.fail(&socket, FailureKind::Process, errno);
            }
            Ok(((_, control), ForkResult::Child)) => {
                // Descriptors of other and later steps.
                let others = mem::take(&mut self.running);
                self.waiting.clear();
                self.listener = None;
                let others = others.into_iter().filter(SupervisorProcess::may_be_kept);
                let others = others.map(|other| other.control).collect();
                let connection = HostConnection { socket, control: control.into(), is_busy };
                let settings = self.additions.settings.as_ref();
                let keeping = settings.map(|settings| Keeping { settings, others });
                supervisor::run(&self.tree, connection, keeping);
                os::exit(0);
            }
            Ok(((control, _), ForkResult::Parent(pid))) => {
                let unanswered = Some(UnansweredStep { host: Some(socket), lost: None });
                self.running.push(SupervisorProcess { pid, control: control.into(), unanswered });
            }
        }
    }

    fn wait(&mut self) {
        let accepts = self.waiting.len() < MAX_WAITING;
        let listener = self.listener.as_ref().filter(|_| accepts);
        // Growing it entry by entry fragments the heap of this process, which lives as long as the job.
        let mut entries = Vec::with_capacity(2 + 2 * self.running.len());
        entries.push(PollFd::new(self.signals.as_fd(), POLLIN));
        entries.push(PollFd::input(listener.map(OwnedFd::as_fd)));
        let mut is_lost = false;
        for running in &self.running {
            entries.push(PollFd::new(running.control.as_fd(), POLLIN));
            let Some(UnansweredStep { host, lost }) = &running.unanswered else { continue };
            let host = host.iter().filter(|_| lost.is_none());
            entries.extend(host.map(|host| PollFd::new(host.as_fd(), POLLRDHUP)));
            is_lost |= lost.is_some();
        }
        os::poll(&mut entries, is_lost.then_some(CONTINUE_EVERY));
        if let Some(listener) = listener.filter(|_| entries[1].is(POLLIN))
            && let Ok(socket) = accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
        {
            let until = Instant::now() + Duration::from_secs(DEAD_WITHIN_SECONDS);
            self.waiting.push((socket, until));
        }
    }
}
