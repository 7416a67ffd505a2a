//! The launcher: creates processes for a program with many threads and much memory, which are expensive to copy,
//! reports their exits, and reaps orphans. `launch` has its protocol.
//!
//! It has one thread, never blocks, and knows no arguments or variables: the created process itself reads its
//! request, and executes the program, which may hang on a mount that does not respond.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::Duration;

use crate::os::{
    self, ForkResult, POLLERR, POLLHUP, POLLIN, PollFd, SIGCHLD, SIGKILL, SignalSet, path_of,
};
use oci_hooks_init::launch::{
    LaunchAction, LaunchMessage, LaunchReport, LaunchRequest, OrphanReport, ProgramPaths,
    START_DESCRIPTORS, is_executable,
};
use rustix::io::Errno;
use rustix::process::{
    Resource, Rlimit, getpid, getrlimit, set_child_subreaper, setpgid, setrlimit,
};

/// Exit code of a process that could not execute its program.
const NOT_EXECUTED: i32 = 127;

/// Maximum number of children to reap before the next message is handled: a job may create children
/// faster than they are reaped.
const REAPED_AT_ONCE: usize = 64;

/// Size of the buffer for a message. It is larger than any valid message, so that a longer one is
/// detected.
const RECEIVED_AT_ONCE: usize = 64;

/// State that the launcher saves before it changes its own, and restores in each program that it
/// starts.
struct InheritedState {
    mask: SignalSet,
    /// Limit of open files.
    limit: Rlimit,
    /// Standard input of programs. Opened once, because a step may replace `/dev/null`.
    input: File,
}

/// A process whose exit is to be reported.
struct LaunchedProcess {
    token: u64,
    reports: File,
}

/// Starts processes until the socket on standard input is closed; returns the exit code.
pub fn run() -> i32 {
    let socket = io::stdin();
    let Ok(input) = File::open("/dev/null") else { return 1 };
    os::close_on_execution();
    let _ = set_child_subreaper(Some(getpid()));
    let limit = getrlimit(Resource::Nofile);
    // One descriptor for each process.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    // A signal of a terminal is not for the launcher.
    let inherited = InheritedState { mask: os::block(SignalSet::all()), limit, input };
    let Ok(signals) = os::signal_descriptor(SignalSet::of(&[SIGCHLD])) else { return 1 };
    let mut signals = File::from(signals);
    let mut running = BTreeMap::new();
    let mut has_more = false;
    loop {
        let mut polled =
            [PollFd::new(socket.as_fd(), POLLIN), PollFd::new(signals.as_fd(), POLLIN)];
        os::poll(&mut polled, has_more.then_some(Duration::ZERO));
        // Checked first: a program that has ended needs no more processes.
        if polled[0].is(POLLHUP | POLLERR) {
            return 0;
        }
        if polled[0].is(POLLIN) {
            let (mut bytes, mut descriptors) = ([0; RECEIVED_AT_ONCE], Vec::new());
            match os::receive(socket.as_fd(), &mut bytes, &mut descriptors) {
                Ok(0) => return 0,
                Ok(count) => match LaunchMessage::decode(&bytes[..count]) {
                    Some(LaunchMessage::Start { token }) => {
                        start(token, descriptors, &inherited, &mut running);
                    }
                    Some(LaunchMessage::Signal { token, signal }) => {
                        send(token, signal.into(), &running);
                    }
                    Some(LaunchMessage::Abandon { token }) => {
                        send(token, SIGKILL, &running);
                        running.retain(|_, process| process.token != token);
                    }
                    Some(LaunchMessage::Orphans) => report_orphans(descriptors, &running),
                    None => {}
                },
                // Out of memory or descriptors: the sender sees that its pipe is closed.
                Err(_) => {}
            }
        }
        let has_signal = polled[1].is(POLLIN);
        if has_signal {
            let _ = signals.read(&mut [0; 128]);
        }
        if has_signal || has_more {
            has_more = collect(&mut running);
        }
    }
}

fn start(
    token: u64,
    descriptors: Vec<OwnedFd>,
    inherited: &InheritedState,
    running: &mut BTreeMap<i32, LaunchedProcess>,
) {
    let mut descriptors = descriptors.into_iter();
    let all: Vec<_> = descriptors.by_ref().take(START_DESCRIPTORS).map(File::from).collect();
    let Ok([mut reports, out, err, request]) = <[File; START_DESCRIPTORS]>::try_from(all) else {
        return;
    };
    let cgroup = descriptors.next();
    let (fork, has_entered) = match cgroup.as_ref().map(|cgroup| os::duplicate_into(cgroup.as_fd()))
    {
        Some(Ok(fork)) => (Ok(fork), true),
        // Older kernels, seccomp profiles and some cgroups do not permit it.
        Some(Err(_)) | None => (os::duplicate(), false),
    };
    let report = match fork {
        Ok(ForkResult::Parent(pid)) => LaunchReport::Started { pid },
        Ok(ForkResult::Child) => {
            // Close the copies of other processes' pipes: their readers must see EOF if the launcher ends.
            running.clear();
            if let Some(cgroup) = cgroup.filter(|_| !has_entered) {
                // Without the permission, the process stays in its cgroup.
                let procs = format!("/proc/self/fd/{}/cgroup.procs", cgroup.as_raw_fd());
                let _ = fs::write(procs, "0");
            }
            let Err((action, error)) = become_program([out, err], request, inherited);
            let errno = error.raw_os_error().unwrap_or_default();
            let _ = reports.write_all(&LaunchReport::Failed { action, errno }.encode());
            os::exit(NOT_EXECUTED)
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or_default();
            LaunchReport::Failed { action: LaunchAction::Fork, errno }
        }
    };
    // The client may have closed the pipe.
    let _ = reports.write_all(&report.encode());
    if let LaunchReport::Started { pid } = report {
        running.insert(pid, LaunchedProcess { token, reports });
    }
}

/// Executes the program of a request.
fn become_program(
    streams: [File; 2],
    mut request: File,
    inherited: &InheritedState,
) -> Result<Infallible, (LaunchAction, io::Error)> {
    let _ = setpgid(None, None);
    // Before anything that may hang in the kernel: SIGTERM ends it.
    os::restore_signals(inherited.mask);
    let setup = |error| (LaunchAction::Setup, error);
    let mut bytes = Vec::new();
    request.read_to_end(&mut bytes).map_err(setup)?;
    let request = LaunchRequest::decode(&bytes);
    let request = request.ok_or_else(|| setup(io::ErrorKind::InvalidData.into()))?;
    for (number, stream) in (0..).zip([&inherited.input, &streams[0], &streams[1]]) {
        os::duplicate_to(stream.as_fd(), number).map_err(setup)?;
    }
    std::env::set_current_dir(path_of(&request.work_dir))
        .map_err(|error| (LaunchAction::WorkDir, error))?;
    let index = match &request.programs {
        ProgramPaths::Exact(_) => Some(0),
        ProgramPaths::Candidates(paths) => {
            paths.iter().position(|path| is_executable(path_of(path)))
        }
    };
    let index = index.ok_or_else(|| (LaunchAction::Find, io::Error::from(Errno::NOENT)))?;
    let (argv, env) = (os::to_c_strings(request.argv), os::to_c_strings(request.env));
    setrlimit(Resource::Nofile, inherited.limit).map_err(|error| setup(error.into()))?;
    let error = os::execute(&request.programs.all()[index], &argv, Some(&env));
    Err((LaunchAction::Execute(u16::try_from(index).unwrap_or_default()), error))
}

fn send(token: u64, signal: i32, running: &BTreeMap<i32, LaunchedProcess>) {
    let process = running.iter().find(|(_, process)| process.token == token);
    if let Some((pid, _)) = process {
        // Both, as the process may have moved to another group. It was not reaped, so its id is valid.
        let _ = os::kill(-pid, signal);
        let _ = os::kill(*pid, signal);
    }
}

/// Writes an [`OrphanReport`] into a pipe. Without the kernel's list of children, the pipe is closed without a report.
fn report_orphans(descriptors: Vec<OwnedFd>, running: &BTreeMap<i32, LaunchedProcess>) {
    let Some(pipe) = descriptors.into_iter().next() else { return };
    let Ok(children) = fs::read_to_string("/proc/thread-self/children") else { return };
    let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
    let orphans = children.filter(|pid| !running.contains_key(pid)).map(i32::cast_unsigned);
    let report = OrphanReport(orphans.collect());
    // If the pipe is full, the reader sees that the report is truncated.
    let _ = File::from(pipe).write_all(&report.encode());
}

/// Reaps children that have ended, including orphans. Returns whether there may be more.
fn collect(running: &mut BTreeMap<i32, LaunchedProcess>) -> bool {
    for _ in 0..REAPED_AT_ONCE {
        let Ok(Some((pid, exit))) = os::wait_any() else { return false };
        if let Some(mut process) = running.remove(&pid) {
            let _ = process.reports.write_all(&LaunchReport::Ended { exit }.encode());
        }
    }
    true
}
