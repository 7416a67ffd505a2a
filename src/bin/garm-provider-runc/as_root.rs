//! The far end of sudo: a call that [`relay`](crate::relay) forwards is carried out as root.

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use clap::Args;
use oci_hooks::garm::MAX_DOCUMENT_BYTES;
use oci_hooks::program::relayed::read_message;
use rustix::process::{Signal, getpid, kill_process};

use crate::relay::is_relayed;
use crate::{call, settings};

/// Carry out a call of GARM as root; called by sudo
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct AsRootArgs {}

/// Why a relayed call is rejected.
#[derive(Debug, thiserror::Error)]
enum AsRootError {
    #[error(
        "the call names the settings {}, expected {}, which sudoers allows", named.display(),
        allowed.display()
    )]
    NotTheSettings { named: PathBuf, allowed: PathBuf },
    #[error("malformed relayed call")]
    NotRelayed(#[source] io::Error),
}

/// Carries out a call of the other end, with the settings that sudo allowed to be named.
pub(crate) fn run(config: Option<&Path>) -> ExitCode {
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
        Err(error) => call::refused(&AsRootError::NotRelayed(error)),
    }
}

/// Checks that a call names the settings that root says it may, by the same path.
fn check_settings(named: Option<String>, config: Option<&Path>) -> Result<(), AsRootError> {
    let usual = Path::new(settings::FILE);
    let named = named.filter(|path| !path.is_empty()).map_or_else(|| usual.into(), PathBuf::from);
    let allowed = config.unwrap_or(usual);
    // Compared as text: `a/../b` may lead elsewhere.
    if named.as_os_str() == allowed.as_os_str() {
        Ok(())
    } else {
        Err(AsRootError::NotTheSettings { named, allowed: allowed.into() })
    }
}

/// Waits until the other end is gone, and ends this process as GARM ended that one: GARM waits for all
/// who have its pipes, and a call may be killed at any moment.
fn end_with_caller(mut input: impl io::Read) {
    let _ = io::copy(&mut input, &mut io::sink());
    let _ = kill_process(getpid(), Signal::KILL);
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
