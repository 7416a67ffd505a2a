//! `serve DIR [PROGRAM ARGS…]`: the first process of a container in a cluster.

use std::ffi::OsString;
use std::time::Duration;

use crate::agent_dir::AgentDirectory;
use crate::keeper::{AWAY, KeeperSettings};
use crate::os::{self, SignalSet};
use crate::single::{self, report};
use crate::steps;

/// Option that overrides [`AWAY`], in seconds. Steps cannot change it.
const AWAY_OPTION: &str = "--away=";

/// Starts steps, and perhaps a program, until a terminating signal or the program's exit; returns
/// the exit code.
pub fn run(args: &[OsString]) -> i32 {
    let option = args.first().and_then(|first| first.to_str()?.strip_prefix(AWAY_OPTION));
    let seconds = option.and_then(|seconds| seconds.parse().ok());
    let args = if seconds.is_some() { &args[1..] } else { args };
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
