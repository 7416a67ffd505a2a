//! The first process of a container, as a static program of its own: an image needs no shell, no
//! `tail` and no C library for it.
//!
//! - Without arguments it waits for `SIGTERM` (or `SIGINT`, `SIGQUIT`, `SIGHUP`), and collects the
//!   processes whose parents are gone.
//! - With `steps FD`, where `FD` is a socket that listens, it starts steps besides: `frames` is how it is
//!   asked for them, `steps` and `supervisor` what becomes of them.
//! - With other arguments it runs them as a program, passes every signal on, collects the rest, and
//!   ends as the program did: with its code, or 128 and its signal.
//!
//! Where it is called `agent`, as in the pods of a cluster, its first argument says what it does, since
//! `serve` may be any image's program:
//! - `serve DIR [PROGRAM ARGS…]` makes the socket itself, in a directory that may be another user's, and
//!   keeps what steps write for hosts that may go and come back (`keeper`). If there is a program, it is run
//!   too, and the end of it is the end.
//! - `call DIR` is no first process, but what an exec starts beside one: how a host asks for steps and
//!   files through standard input and output.
//!
//! Where it is called `probe`, it tries what must be out of reach (`probe`), as `trials` says.
//!
//! Compiled by `build.rs`, with the standard library alone and linked statically, for the target of
//! the package. It is of the version of the package; what it is asked for later may be of another,
//! which the first frame settles.

mod attached;
mod backlog;
mod call;
mod clients;
mod drain;
mod exchange;
mod files;
mod frames;
mod keeper;
mod os;
mod place;
mod probe;
mod relay;
mod remote;
mod serve;
mod single;
mod start;
mod steps;
mod supervised;
mod supervisor;
mod tree;
mod trials;

use os::at;
use std::env;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;

use steps::Additions;

/// What the program is called where it does more, and where it does something else.
const AGENT: &str = "agent";
const PROBE: &str = "probe";

fn main() {
    let mut args = env::args_os();
    let name = args.next().unwrap_or_default();
    let is_called = |other: &str| Path::new(&name).file_name() == Some(other.as_ref());
    let is_agent = is_called(AGENT);
    let args: Vec<OsString> = args.collect();
    let code = match (listener(&args), args.split_first()) {
        _ if is_called(PROBE) => probe::run(&args),
        (_, Some((mode, args))) if is_agent && mode == "call" => call::run(args),
        (_, Some((mode, args))) if is_agent && mode == "serve" => serve::run(args),
        (Some(listener), _) => steps::serve(listener, Additions::default()),
        _ => single::run(&args),
    };
    os::exit(code);
}

/// Returns the socket that the arguments name: a program may be called `steps` too.
fn listener(args: &[OsString]) -> Option<OwnedFd> {
    let [command, number] = args else { return None };
    let number = number.to_str()?.parse().ok().filter(|_| command == "steps")?;
    os::listener(number)
}
