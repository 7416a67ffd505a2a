//! `container-hook relay` and `container-hook as-root`: the two ends of sudo.
//!
//! The runner ends a step by a signal to the one process it started. sudo forwards no signal that a
//! process of its own process group sends, and the runner is in that group; killed, it leaves what
//! it runs behind. So the process that the runner knows is ours, `relay`. It sends by a pipe to the
//! other end, `as-root`, what cannot get past sudo: the variables of the runner, the request, and
//! then each signal as one byte. The end of the pipe means that `relay` was killed.
//!
//! A step of a job container that takes steps itself is not handed on at all: the runner's user connects
//! to it.
//!
//! As no variable goes past sudo itself, the line in sudoers needs no `SETENV`, by which the
//! runner's user could have root load a library of their own.

use std::env;
use std::io::{self, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::thread;

use clap::Args;
use oci_hooks::container_hook::HookError;
use oci_hooks::container_hook::request::Request;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::relayed::{
    AS_ROOT, find, message, read_message, sudo_caller, this_program,
};
use oci_hooks::runtime::{DEFAULT_PATH, FindError};
use oci_hooks::sys::fs::{PathContext as _, PathError};
use oci_hooks::sys::spawn;

use crate::log::Log;
use crate::stdin::{self, StdinError};
use crate::{environment, signals, step};

/// Carry out a request as root; called by the script of `install --sudo`
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct RelayArgs {}

/// Carry out a request of `relay`; called by sudo
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct AsRootArgs {}

/// Why a request did not get to the other end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot find sudo: install it, or have the runner run as root")]
    NoSudo(#[source] FindError),
    #[error("malformed relayed request")]
    NotRelayed(#[source] io::Error),
    #[error(transparent)]
    Hook(#[from] Box<HookError>),
    #[error("SUDO_UID and SUDO_GID do not name the caller: `as-root` is called by sudo alone")]
    NoCaller,
}

/// Hands the request to root, and everything that happens meanwhile.
pub(crate) fn relay(log: &Log) -> Result<Exit, RelayError> {
    let request = stdin::read()?;
    // What is wrong with a request is said by who carries it out.
    if let Ok(parsed) = Request::parse(&request)
        && let Some(exit) = step::run(&parsed, log)?
    {
        return Ok(exit);
    }
    let this = this_program()?;
    let sudo = find("sudo").map_err(RelayError::NoSudo)?;
    let mut command = Command::new(&sudo);
    command.arg("--non-interactive").arg("--").arg(this).arg(AS_ROOT).stdin(Stdio::piped());
    let mut child = command.spawn().at("execute", &sudo)?;
    let mut pipe = child.stdin.take().expect("it was asked for");
    let variables =
        environment::variables().filter_map(|name| Some((name.to_owned(), env::var(name).ok()?)));
    let message = message(variables.collect(), &request);
    // Both in a thread: sudo may end without having read anything, and signals wait for nothing.
    thread::spawn(move || {
        if pipe.write_all(&message).is_ok() {
            signals::on_each(move |signal| {
                let byte = u8::try_from(signal).expect("signals are small numbers");
                // If nobody listens the step has ended.
                let _ = pipe.write_all(&[byte]);
            });
        }
    });
    let status = child.wait().at("wait for", &sudo)?;
    Ok(status.into())
}

/// Carries out a request of the other end.
pub(crate) fn as_root() -> Result<Exit, RelayError> {
    let mut input = BufReader::new(io::stdin());
    let (variables, request) =
        read_message(&mut input, stdin::MAX_BYTES).map_err(RelayError::NotRelayed)?;
    // Without it the request would be taken for one of root's own.
    let (uid, gid) = sudo_caller().ok_or(RelayError::NoCaller)?;
    let this = this_program()?;
    let mut command = Command::new(&this);
    command.env_clear().env("PATH", DEFAULT_PATH).stdin(Stdio::piped());
    // What sudo says of the caller is true; the rest is what any caller may say.
    let caller = [("SUDO_UID", uid.to_string()), ("SUDO_GID", gid.to_string())];
    command.envs(variables.iter().filter(|(name, _)| is_relayed(name))).envs(caller);
    spawn::die_with_us(&mut command);
    let mut child = command.spawn().at("execute", &this)?;
    let process = signals::open(child.id());
    let mut pipe = child.stdin.take().expect("it was asked for");
    thread::spawn(move || {
        // A child that does not read has ended, and says so by its status.
        let _ = pipe.write_all(&request);
    });
    if let Some(process) = process {
        let other = process.try_clone();
        thread::spawn(move || {
            for byte in input.bytes().map_while(Result::ok) {
                signals::send(&process, i32::from(byte));
            }
            // The other end was killed: nobody else can end the step, and clean up after it.
            signals::end(&process);
        });
        if let Ok(process) = other {
            signals::on_each(move |signal| signals::send(&process, signal));
        }
    }
    let status = child.wait().at("wait for", &this)?;
    Ok(status.into())
}

fn is_relayed(name: &str) -> bool {
    environment::variables().any(|relayed| relayed == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_hook_knows_gets_past() {
        for name in ["RUNNER_NAME", "ACTIONS_RUNNER_NETWORK_DRIVER", "DOCKER_HOST"] {
            assert!(is_relayed(name), "{name}");
        }
        for name in ["LD_PRELOAD", "PATH", "HOME", "SUDO_UID", "OCI_HOOKS_CONTAINER_HOOK_CONFIG"] {
            assert!(!is_relayed(name), "{name}");
        }
    }
}
