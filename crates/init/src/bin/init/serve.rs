//! `serve DIR [PROGRAM ARGS…]`: the first process of a container in a cluster.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use crate::agent_dir::AgentDirectory;
use crate::keeper::{AWAY, KeeperSettings};
use crate::os::{self, SignalSet};
use crate::single::{self, report};
use crate::steps;
use oci_hooks_init::NO_EXTERNALS;

/// Option that overrides [`AWAY`], in seconds. Steps cannot change it.
const AWAY_OPTION: &str = "--away=";

/// Option with two directories: links to all entries of the first are created in the second.
const EXTERNALS_OPTION: &str = "--externals";

/// Starts steps, and perhaps a program, until a terminating signal or the program's exit; returns
/// the exit code.
pub fn run(args: &[OsString]) -> i32 {
    let option = args.first().and_then(|first| first.to_str()?.strip_prefix(AWAY_OPTION));
    let seconds = option.and_then(|seconds| seconds.parse().ok());
    let mut args = if seconds.is_some() { &args[1..] } else { args };
    if let [option, from, to, rest @ ..] = args
        && option == EXTERNALS_OPTION
    {
        if let Err(error) = link_entries(from, to.as_ref()) {
            let (from, to) = (from.display(), to.display());
            report("agent", &format!("cannot link the entries of {from} in {to}: {error}"));
            return NO_EXTERNALS;
        }
        args = rest;
    }
    let Some((directory, program)) = args.split_first() else {
        report("agent", "expected the directory of the agent as the first argument");
        return 2;
    };
    let before = os::block(SignalSet::all());
    let agent_dir = AgentDirectory::new(directory.into());
    let listener = match agent_dir.listen() {
        Ok(listener) => listener,
        Err(error) => {
            let directory = directory.display();
            report("agent", &format!("cannot create a socket in {directory}: {error}"));
            return 1;
        }
    };
    let program = match program {
        [] => None,
        program => match single::start(program, before) {
            Ok(pid) => Some(pid),
            Err(error) => {
                report("agent", &format!("cannot create a process for the program: {error}"));
                return single::CANNOT_FORK;
            }
        },
    };
    let settings = KeeperSettings { agent_dir, away: seconds.map_or(AWAY, Duration::from_secs) };
    steps::serve(listener.into(), steps::ServeOptions { program, settings: Some(settings) })
}

/// Creates a symbolic link in `to` to each entry of the directory `from`. Existing entries of `to` stay.
fn link_entries(from: &OsStr, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        match symlink(entry.path(), to.join(entry.file_name())) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
