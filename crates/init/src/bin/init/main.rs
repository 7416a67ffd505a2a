//! The first process of a container, as a static program: images need no shell, no `tail` and no C
//! library for it.
//!
//! - Without arguments it waits for `SIGTERM` (or `SIGINT`, `SIGQUIT`, `SIGHUP`), and reaps orphans.
//! - With `steps FD`, where `FD` is a listening socket, it starts steps too: `frames` has the protocol,
//!   `steps` and `supervisor` run them. It exits with 128 and the number of the signal.
//! - With other arguments it runs them as a program, forwards every signal, reaps orphans, and exits
//!   like the program: with its code, or 128 plus its signal.
//!
//! If it is called `agent`, as in the pods of a cluster, its first argument is a mode, because
//! `serve` may be a program of the image:
//! - `serve DIR [PROGRAM ARGS…]` creates the socket itself, in a directory that may be another user's, and
//!   keeps the output of steps for hosts that disconnect and return (`keeper`). If there is a program,
//!   it is run too, and the process exits with it: with its code, unless that is 0 after a terminating signal.
//!   `--externals FROM TO` before `DIR` links the entries of one directory in another.
//! - `call DIR` is not a first process, but is started by an exec: a host requests steps and files through
//!   its standard input and output.
//!
//! If it is called `launcher`, it creates processes for a large program (`launch`, `launcher`).
//!
//! If it is called `probe`, it tries to reach targets that must be out of its reach (`probe`, `trials`).
//!
//! `build.rs` links it statically and puts it into the library. Requests may come from another version of the package: the first frame negotiates the
//! version of the protocol.

mod agent_dir;
mod attached;
mod backlog;
mod call;
mod clients;
mod exchange;
mod keeper;
mod launcher;
mod limits;
mod os;
mod probe;
mod relay;
mod remote;
mod serve;
mod single;
mod start;
mod steps;
mod supervisor;
mod tree;

use std::env;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;

use steps::ServeOptions;

fn main() {
    let mut args = env::args_os();
    let name = args.next().unwrap_or_default();
    let is_called = |other: &str| Path::new(&name).file_name() == Some(other.as_ref());
    let is_agent = is_called("agent");
    let args: Vec<OsString> = args.collect();
    let code = match (listener(&args), args.split_first()) {
        _ if is_called("launcher") => launcher::run(),
        _ if is_called("probe") => probe::run(&args),
        (_, Some((mode, args))) if is_agent && mode == "call" => call::run(args),
        (_, Some((mode, args))) if is_agent && mode == "serve" => serve::run(args),
        (Some(listener), _) => steps::serve(listener, ServeOptions::default()),
        _ => single::run(&args),
    };
    os::exit(code);
}

/// Returns the listening socket of `steps FD`. A program may be called `steps` too.
fn listener(args: &[OsString]) -> Option<OwnedFd> {
    let [command, number] = args else { return None };
    let number = number.to_str()?.parse().ok().filter(|_| command == "steps")?;
    os::listener(number)
}
