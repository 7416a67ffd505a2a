//! Waiting for a terminating signal, or running one program.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::{env, iter};

use oci_hooks_init::launch::ProcessExit;
use rustix::process::setpgid;

use crate::os::{
    self, ENOENT, ENOTDIR, ForkResult, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SignalSet,
};
use crate::start::{DEFAULT_PATH, search_paths};

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
            let _ = setpgid(None, None);
            os::restore_signals(mask);
            os::exit(execute(args))
        }
    }
}

/// Executes the program, searched for in `PATH` if its name has no slash; returns an exit code if
/// that fails.
fn execute(args: &[OsString]) -> i32 {
    let words = os::to_c_strings(args.iter().map(|arg| arg.as_bytes().to_vec()));
    let name = args[0].as_bytes();
    let path = env::var_os("PATH");
    let path = path.as_ref().map_or(DEFAULT_PATH, |path| path.as_bytes());
    let files =
        if name.contains(&b'/') { vec![name.to_vec()] } else { search_paths(path, name).collect() };
    let mut result = ENOENT;
    for file in files {
        let error = os::execute(&file, &words, None).raw_os_error().unwrap_or(ENOENT);
        if error != ENOENT && error != ENOTDIR {
            result = error;
        }
    }
    let name = args[0].to_string_lossy();
    if result == ENOENT {
        report(&name, "executable file not found");
        return NOT_FOUND;
    }
    report(&name, &format!("cannot be executed: {}", io::Error::from_raw_os_error(result)));
    NOT_EXECUTABLE
}

/// Reaps all children that have exited; returns the exit code of the program if it is among them.
fn collect(child: Option<i32>) -> Option<i32> {
    let all: Vec<_> = iter::from_fn(|| os::wait_any().ok().flatten()).collect();
    let (_, exit) = all.into_iter().find(|(pid, _)| Some(*pid) == child)?;
    Some(code(exit))
}

/// Returns the exit code for a program's end: its code, or 128 plus its signal.
pub fn code(exit: ProcessExit) -> i32 {
    match exit {
        ProcessExit::Exited(code) => code.into(),
        ProcessExit::Signalled(signal) => SIGNALLED + i32::from(signal),
    }
}

/// Prints a message to standard error, which may be closed.
pub fn report(what: &str, why: &str) {
    let _ = io::stderr().write_all(format!("{what}: {why}\n").as_bytes());
}
