//! GARM's user is not root, but instances are root's: a call goes to root by sudo.
//!
//! sudo keeps variables back, so they and standard input go through a pipe. The line in sudoers
//! needs no `SETENV`, by which GARM's user could have root load a library of their own.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, BufReader, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use clap::Args;
use oci_hooks::garm::MAX_DOCUMENT_BYTES;
use oci_hooks::runtime::FindError;
use oci_hooks::sys::fs::{PathContext as _, PathError};
use rustix::process::{Signal, getpid, kill_process};

use crate::call;
use crate::shared::relayed::{AS_ROOT, PROXY_VARIABLES, find, message, read_message, this_program};

/// Carry out a call of GARM as root: what sudo allows GARM's user to call
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct AsRootArgs {}

/// Why a call did not get to the other end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot find sudo: install it, or have GARM run as root")]
    NoSudo(#[source] FindError),
    #[error("this is not a call that was handed on")]
    NotRelayed(#[source] io::Error),
}

/// Hands this call to root, and returns how it ended.
///
/// The pipe stays open meanwhile: its end means that GARM has killed this process.
pub(crate) fn relay(stdin: &[u8]) -> Result<ExitCode, RelayError> {
    let this = this_program()?;
    let sudo = find("sudo").map_err(RelayError::NoSudo)?;
    let mut command = Command::new(&sudo);
    command.arg("--non-interactive").arg("--").arg(this).arg(AS_ROOT).stdin(Stdio::piped());
    let mut child = command.spawn().at("execute", &sudo)?;
    let mut pipe = child.stdin.take().expect("it was asked for");
    // sudo that does not let us has said so.
    let _ = pipe.write_all(&message(variables(), stdin));
    let status = child.wait().at("wait for", &sudo)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Carries out a call of the other end.
pub(crate) fn as_root() -> ExitCode {
    let mut input = BufReader::new(io::stdin());
    match read_message(&mut input, MAX_DOCUMENT_BYTES) {
        Ok((variables, stdin)) => {
            thread::spawn(move || end_with_caller(input));
            let variable = |name: &str| variables.get(name).filter(|_| is_relayed(name)).cloned();
            call::of_relay(variable, &stdin)
        }
        Err(error) => call::refused(&RelayError::NotRelayed(error)),
    }
}

/// Waits until the other end is gone, and ends this process as GARM ended that one: GARM waits for all
/// who have its pipes, and a call may be killed at any moment.
fn end_with_caller(mut input: impl io::Read) {
    let _ = io::copy(&mut input, &mut io::sink());
    let _ = kill_process(getpid(), Signal::KILL);
}

fn variables() -> BTreeMap<String, String> {
    let texts =
        env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
    texts.filter(|(name, _)| is_relayed(name)).collect()
}

fn is_relayed(name: &str) -> bool {
    name.starts_with("GARM_") || PROXY_VARIABLES.contains(&name)
}

#[test]
fn only_what_is_garms_gets_past() {
    for name in ["GARM_COMMAND", "GARM_POOL_EXTRASPECS", "https_proxy", "NO_PROXY"] {
        assert!(is_relayed(name), "{name}");
    }
    for name in ["LD_PRELOAD", "PATH", "HOME", "SUDO_UID", "XGARM_COMMAND", "all_proxy"] {
        assert!(!is_relayed(name), "{name}");
    }
}
