//! `serve DIR [PROGRAM ARGS…]`: the first process of a container of a cluster.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::time::Duration;

use crate::keeper::Rules;
use crate::os::{self, Signals};
use crate::place::Place;
use crate::{single, steps};

/// How long a step runs, or what it wrote is kept, while no host is attached.
const AWAY: Duration = Duration::from_secs(300);
/// Another time, in seconds. Of the first process alone: no step has a say in it.
const AWAY_OPTION: &str = "--away=";

/// Starts steps, and perhaps a program, until a signal to end or the end of the program; returns the exit
/// code.
pub fn run(args: &[OsString]) -> i32 {
    let option = args.first().and_then(|first| first.to_str()?.strip_prefix(AWAY_OPTION));
    let seconds = option.and_then(|seconds| seconds.parse().ok());
    let args = if seconds.is_some() { &args[1..] } else { args };
    let Some((directory, program)) = args.split_first() else {
        report("expected a directory");
        return 2;
    };
    let before = os::block(Signals::ALL);
    let place = Place::new(directory.into());
    let listener = match place.listen() {
        Ok(listener) => listener,
        Err(error) => {
            report(&format!("cannot make a socket in {}: {error}", directory.display()));
            return 1;
        }
    };
    let program = match program {
        [] => None,
        program => match single::start(program, before) {
            Ok(pid) => Some(pid),
            Err(error) => {
                report(&format!("cannot make a process: {error}"));
                return single::CANNOT_FORK;
            }
        },
    };
    let rules = Rules { place, away: seconds.map_or(AWAY, Duration::from_secs) };
    steps::serve(listener.into(), steps::Additions { program, rules: Some(rules) })
}

fn report(what: &str) {
    let _ = io::stderr().write_all(format!("agent: {what}\n").as_bytes());
}
