//! `container-hook relay` and `container-hook as-root`: the two ends of sudo.
//!
//! The runner ends a step by a signal to the one process it started. sudo hands on no signal that a
//! process of its own process group sends, and the runner is in that group; killed, it leaves what
//! it runs behind. So the process that the runner knows is ours, `relay`. It sends by a pipe to the
//! other end, `as-root`, what cannot get past sudo: the variables of the runner, the request, and
//! then each signal as one byte. The end of the pipe means that `relay` was killed.
//!
//! As no variable goes past sudo itself, the line in sudoers needs no `SETENV`, by which the
//! runner's user could have root load a library of their own.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use clap::Args;
use oci_hooks::runtime::{self, DEFAULT_PATH, FindError};
use oci_hooks::sys::fs::{PathContext as _, PathError};
use oci_hooks::sys::spawn;
use serde::{Deserialize, Serialize};

use crate::Exit;
use crate::stdin::{self, StdinError};
use crate::{environment, signals};

/// Carry out a request as root: what the script of `install --sudo` calls
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct RelayArgs {}

/// Carry out a request of `relay`: what sudo allows the runner's user to call
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct AsRootArgs {}

/// The argument that sudo has to allow.
pub(crate) const AS_ROOT: &str = "as-root";

/// The most that the variables of the runner may hold.
const MAX_VARIABLES_BYTES: u64 = 1 << 20;

/// Why a request did not get to the other end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Stdin(#[from] StdinError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot find sudo: install it, or have the runner run as root")]
    NoSudo(#[source] FindError),
    #[error("this is not a request of `container-hook relay`")]
    NotRelayed(#[source] io::Error),
}

/// What precedes the request, on a line.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    variables: BTreeMap<String, String>,
    request_bytes: u64,
}

/// Hands the request to root, and everything that happens meanwhile.
pub(crate) fn relay() -> Result<Exit, RelayError> {
    let request = stdin::read()?;
    let this = this_program()?;
    let sudo = find("sudo").map_err(RelayError::NoSudo)?;
    let mut command = Command::new(&sudo);
    command.arg("--non-interactive").arg("--").arg(this).arg(AS_ROOT).stdin(Stdio::piped());
    let mut child = command.spawn().at("execute", &sudo)?;
    let mut pipe = child.stdin.take().expect("it was asked for");
    let message = message(environment::variables(), &request);
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
    let (variables, request) = read_message(&mut input).map_err(RelayError::NotRelayed)?;
    let this = this_program()?;
    let mut command = Command::new(&this);
    command.env_clear().env("PATH", DEFAULT_PATH).stdin(Stdio::piped());
    // What sudo says of the caller is true; the rest is what any caller may say.
    let caller = ["SUDO_UID", "SUDO_GID"].map(|name| (name, env::var_os(name).unwrap_or_default()));
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

fn message(names: impl Iterator<Item = &'static str>, request: &[u8]) -> Vec<u8> {
    let variables = names.filter_map(|name| Some((name.to_owned(), env::var(name).ok()?)));
    let header = Header { variables: variables.collect(), request_bytes: request.len() as u64 };
    let mut message = serde_json::to_vec(&header).expect("strings and a number");
    message.push(b'\n');
    message.extend(request);
    message
}

fn read_message(input: &mut impl io::BufRead) -> io::Result<(BTreeMap<String, String>, Vec<u8>)> {
    let mut line = Vec::new();
    input.by_ref().take(MAX_VARIABLES_BYTES).read_until(b'\n', &mut line)?;
    let header: Header = serde_json::from_slice(&line)?;
    if header.request_bytes > stdin::MAX_BYTES {
        return Err(io::Error::other(StdinError::TooLarge));
    }
    let mut request = Vec::new();
    input.by_ref().take(header.request_bytes).read_to_end(&mut request)?;
    if request.len() as u64 != header.request_bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((header.variables, request))
}

/// Returns the file of this program.
pub(crate) fn this_program() -> Result<PathBuf, PathError> {
    env::current_exe().at("look up", Path::new("/proc/self/exe"))
}

/// Finds a program where the system has them: whatever is in `PATH`, the runner's jobs put it there.
pub(crate) fn find(name: &str) -> Result<PathBuf, FindError> {
    runtime::find(&[OsStr::new(name)], Some(DEFAULT_PATH.as_ref()), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_reads_what_was_sent_and_leaves_what_follows() {
        let mut bytes = message(["PATH", "OCI_HOOKS_NO_SUCH_VARIABLE"].into_iter(), b"{\n}\n");
        bytes.push(15);
        let mut input = bytes.as_slice();
        let (variables, request) = read_message(&mut input).unwrap();
        assert_eq!(variables.keys().collect::<Vec<_>>(), ["PATH"]);
        assert_eq!(request, b"{\n}\n");
        assert_eq!(input, [15]);
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_no_request() {
        for text in ["", "\n", "{\"variables\":{},\"request_bytes\":9}\n{}"] {
            read_message(&mut text.as_bytes()).unwrap_err();
        }
        let text = format!("{{\"variables\":{{}},\"request_bytes\":{}}}\n", u64::MAX);
        assert!(read_message(&mut text.as_bytes()).is_err());
    }

    #[test]
    fn only_what_the_hook_knows_gets_past() {
        assert!(is_relayed("RUNNER_NAME"));
        for name in ["LD_PRELOAD", "PATH", "HOME", "SUDO_UID", "OCI_HOOKS_CONTAINER_HOOK_CONFIG"] {
            assert!(!is_relayed(name), "{name}");
        }
    }
}
