//! GARM's user is not root, but instances are root's: a call goes to root by sudo.
//!
//! Which settings root reads is root's to say: those in the usual place, or those that the line in
//! sudoers names, `--config FILE as-root`. Who calls can name no others.
//!
//! sudo keeps variables back, so they and standard input go through a pipe. The line in sudoers
//! needs no `SETENV`, by which GARM's user could have root load a library of their own.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use clap::Args;
use oci_hooks::garm::MAX_DOCUMENT_BYTES;
use oci_hooks::runtime::FindError;
use oci_hooks::sys::fs::{PathContext as _, PathError};
use rustix::process::{Signal, getpid, kill_process};

use crate::shared::relayed::{AS_ROOT, PROXY_VARIABLES, find, message, read_message, this_program};
use crate::{call, settings};

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
    #[error(
        "sudo does not let this user have root read the settings {}: use those in {}, or write \
         \"{line}\" into a file in /etc/sudoers.d", path.display(), settings::FILE
    )]
    OtherSettings { path: PathBuf, line: String },
    #[error(
        "the call names the settings {}, expected {}, which sudoers allows", named.display(),
        allowed.display()
    )]
    NotTheSettings { named: PathBuf, allowed: PathBuf },
    #[error("this is not a call that was handed on")]
    NotRelayed(#[source] io::Error),
}

/// Hands this call to root, and returns how it ended.
///
/// The pipe stays open meanwhile: its end means that GARM has killed this process.
pub(crate) fn relay(stdin: &[u8], config: Option<&Path>) -> Result<ExitCode, RelayError> {
    let this = this_program()?;
    let sudo = find("sudo").map_err(RelayError::NoSudo)?;
    let allowed = command_line(&this, config);
    if let [_, _, path, _] = allowed.as_slice()
        && !allows(&sudo, &allowed)?
    {
        return Err(RelayError::OtherSettings { path: path.into(), line: sudoers_line(&allowed) });
    }
    let mut command = Command::new(&sudo);
    command.arg("--non-interactive").arg("--").args(&allowed).stdin(Stdio::piped());
    let mut child = command.spawn().at("execute", &sudo)?;
    let mut pipe = child.stdin.take().expect("it was asked for");
    // sudo that does not let us has said so.
    let _ = pipe.write_all(&message(variables(), stdin));
    let status = child.wait().at("wait for", &sudo)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns what sudo has to allow, with these settings.
pub(crate) fn command_line(this: &Path, config: Option<&Path>) -> Vec<OsString> {
    let mut words = vec![this.as_os_str().to_owned()];
    if let Some(path) = config.filter(|path| path.as_os_str() != settings::FILE) {
        words.extend(["--config".into(), path.into()]);
    }
    words.push(AS_ROOT.into());
    words
}

/// Returns the line of sudoers that allows it to GARM's user, as packages of GARM call them.
pub(crate) fn sudoers_line(command_line: &[OsString]) -> String {
    let words: Vec<_> = command_line.iter().map(|word| word.to_string_lossy()).collect();
    format!("garm ALL=(root) NOPASSWD: {}", words.join(" "))
}

/// Asks sudo whether it allows a command: that it does not is not to be taken for a failure of it.
fn allows(sudo: &Path, command: &[OsString]) -> Result<bool, RelayError> {
    let mut list = Command::new(sudo);
    list.args(["--non-interactive", "--list", "--"]).args(command);
    list.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(list.status().at("execute", sudo)?.success())
}

/// Carries out a call of the other end, with the settings that sudo allowed to be named.
pub(crate) fn as_root(config: Option<&Path>) -> ExitCode {
    let mut input = BufReader::new(io::stdin());
    match read_message(&mut input, MAX_DOCUMENT_BYTES) {
        Ok((variables, stdin)) => {
            thread::spawn(move || end_with_caller(input));
            let variable = |name: &str| variables.get(name).filter(|_| is_relayed(name)).cloned();
            // Before anything is looked at by that name.
            match check_settings(variable(settings::FILE_VARIABLE), config) {
                Ok(()) => call::of_relay(variable, &stdin),
                Err(error) => call::refused(&error),
            }
        }
        Err(error) => call::refused(&RelayError::NotRelayed(error)),
    }
}

/// Checks that a call names the settings that root says it may, by the same path.
fn check_settings(named: Option<String>, config: Option<&Path>) -> Result<(), RelayError> {
    let usual = Path::new(settings::FILE);
    let named = named.filter(|path| !path.is_empty()).map_or_else(|| usual.into(), PathBuf::from);
    let allowed = config.unwrap_or(usual);
    // Compared as text: `a/../b` may lead elsewhere.
    if named.as_os_str() == allowed.as_os_str() {
        Ok(())
    } else {
        Err(RelayError::NotTheSettings { named, allowed: allowed.into() })
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
fn root_reads_the_usual_settings_or_those_that_sudoers_names() {
    let check = |named: Option<&str>, config: Option<&str>| {
        check_settings(named.map(str::to_owned), config.map(Path::new)).is_ok()
    };
    let (usual, other) = (settings::FILE, "/etc/other.toml");
    for (named, config) in [(None, None), (Some(""), None), (Some(usual), None)] {
        assert!(check(named, config), "{named:?}");
    }
    assert!(check(Some(other), Some(other)));
    for (named, config) in [
        (Some("/etc/shadow"), None),
        (Some("/etc/oci-hooks/../shadow"), None),
        (Some("/etc/oci-hooks//garm-provider-runc.toml"), None),
        (Some(other), None),
        (Some(usual), Some(other)),
        (Some("/etc/shadow"), Some(other)),
        (None, Some(other)),
    ] {
        assert!(!check(named, config), "{named:?} {config:?}");
    }
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
