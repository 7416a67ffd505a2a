//! Waiting for a terminating signal, or running one program.

use std::ffi::{CString, OsString};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::{env, iter};

use crate::os::{
    self, ChildStatus, ChildWait, ENOENT, ENOTDIR, ForkResult, SIGCHLD, SIGHUP, SIGINT, SIGQUIT,
    SIGTERM, SignalSet,
};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Exit code for a process that could not be created, as container engines use it.
pub const CANNOT_FORK: i32 = 125;
/// Exit code for a program that cannot be executed, as shells use it.
const NOT_EXECUTABLE: i32 = 126;
/// Exit code for a program that was not found, as shells use it.
const NOT_FOUND: i32 = 127;
/// Base of the exit codes of programs that a signal ended: shells add the signal's number.
const SIGNALLED: i32 = 128;

/// Waits for a terminating signal, or runs a program and forwards every signal; returns the exit
/// code.
pub fn run(args: &[OsString]) -> i32 {
    let before = os::block(SignalSet::all());
    let child = match args {
        [] => None,
        args => match start(args, before) {
            Ok(child) => Some(child),
            Err(error) => {
                report("init", &format!("cannot create a process: {error}"));
                return CANNOT_FORK;
            }
        },
    };
    loop {
        match (os::wait_signal(SignalSet::all(), None), child) {
            (Some(SIGCHLD), _) => {
                if let Some(code) = collect(child) {
                    return code;
                }
            }
            (Some(signal), Some(child)) => drop(os::kill(child, signal)),
            (Some(SIGTERM | SIGINT | SIGQUIT | SIGHUP), None) => return 0,
            _ => {}
        }
    }
}

/// Starts the program with the given signal mask, in its own process group.
pub fn start(args: &[OsString], mask: SignalSet) -> io::Result<i32> {
    match os::duplicate()? {
        ForkResult::Parent(child) => Ok(child),
        ForkResult::Child => {
            os::new_group();
            os::restore_signals(mask);
            os::exit(execute(args))
        }
    }
}

/// Executes the program, searched for in `PATH` if its name has no slash; returns an exit code if
/// that fails.
fn execute(args: &[OsString]) -> i32 {
    let words: Vec<_> =
        args.iter().map(|arg| CString::new(arg.as_bytes()).unwrap_or_default()).collect();
    let name = &args[0];
    let path = match env::var_os("PATH") {
        _ if name.as_bytes().contains(&b'/') => None,
        path => Some(path.unwrap_or_else(|| DEFAULT_PATH.into())),
    };
    let files: Vec<_> = match &path {
        None => vec![name.as_bytes().to_vec()],
        Some(path) => path
            .as_bytes()
            .split(|byte| *byte == b':')
            .map(|dir| if dir.is_empty() { b"." } else { dir })
            .map(|dir| [dir, b"/", name.as_bytes()].concat())
            .collect(),
    };
    let mut result = ENOENT;
    for file in files {
        let file = CString::new(file).unwrap_or_default();
        let error = os::execute(&file, &words, None).raw_os_error().unwrap_or(ENOENT);
        if error != ENOENT && error != ENOTDIR {
            result = error;
        }
    }
    let name = name.to_string_lossy();
    if result == ENOENT {
        report(&name, "executable file not found");
        return NOT_FOUND;
    }
    report(&name, &format!("cannot be executed: {}", io::Error::from_raw_os_error(result)));
    NOT_EXECUTABLE
}

/// Reaps all children that have exited; returns the exit code of the program if it is among them.
fn collect(child: Option<i32>) -> Option<i32> {
    let ended = iter::from_fn(|| match os::wait_any() {
        ChildWait::Ended(pid, status) => Some((pid, status)),
        ChildWait::Running | ChildWait::NoChildren => None,
    });
    let all: Vec<_> = ended.collect();
    let (_, status) = all.into_iter().find(|(pid, _)| Some(*pid) == child)?;
    Some(code(status))
}

/// Returns the exit code for a program's status: its code, or 128 plus its signal.
pub fn code(status: ChildStatus) -> i32 {
    match status {
        ChildStatus::Exited(code) => code.into(),
        ChildStatus::Signalled(signal) => SIGNALLED + i32::from(signal),
    }
}

fn report(what: &str, why: &str) {
    let _ = io::stderr().write_all(format!("{what}: {why}\n").as_bytes());
}
