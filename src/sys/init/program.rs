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
//! Compiled by `build.rs`, with the standard library alone and linked statically, for the target of
//! the package. It is of the version of the package; what it is asked for later may be of another,
//! which the first frame settles.

mod frames;
mod os;
mod relay;
mod single;
mod start;
mod steps;
mod supervisor;
mod tree;

use std::env;
use std::ffi::OsString;
use std::os::fd::OwnedFd;

fn main() {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let code = match listener(&args) {
        Some(listener) => steps::serve(listener),
        None => single::run(&args),
    };
    os::exit(code);
}

/// Returns the socket that the arguments name: a program may be called `steps` too.
fn listener(args: &[OsString]) -> Option<OwnedFd> {
    let [command, number] = args else { return None };
    let number = number.to_str()?.parse().ok().filter(|_| command == "steps")?;
    os::listener(number)
}
