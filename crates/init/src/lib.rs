//! The first process of containers, as a static program ([`PROGRAM`]), and the protocol by which a host starts steps
//! and exchanges files with it ([`frames`]). It is for images without an init, or with one that does not reap orphans.
//! The crate creates no containers: an engine mounts the program into one.
//!
//! `build.rs` compiles the program (`src/bin/init`), and needs the static C library for it (Debian: `libc6-dev`, Fedora:
//! `glibc-static`).

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod drain;
pub mod files;
pub mod frames;
pub mod launch;
pub mod trials;

/// Static program. Without arguments it waits for a terminating signal; with `steps FD` it starts
/// steps for clients of that listening socket; with `PROGRAM ARGS…` it runs the program. In all
/// modes it reaps orphans. Called `launcher`, it creates processes for another program (see
/// [`launch`]). Its source is `src/bin/init`.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));

/// Exit code of the agent if it cannot link the runner's externals.
pub const NO_EXTERNALS: i32 = 119;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Child, Command, Stdio};

    use oci_hooks_testsupport::init::install;
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    fn send(child: &Child, signal: Signal) {
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    #[test]
    fn init_exits_like_its_program() {
        let (_dir, init) = install(PROGRAM);
        for (script, code) in [("exit 7", 7), ("kill -TERM $$", 143), ("true", 0)] {
            let status = Command::new(&init).args(["sh", "-c", script]).status().unwrap();
            assert_eq!(status.code(), Some(code), "{script}");
        }
    }

    #[test]
    fn init_reports_programs_that_cannot_run() {
        let (dir, init) = install(PROGRAM);
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        for (program, code, message) in [
            ("no-such-program", 127, "no-such-program: executable file not found\n"),
            ("/no/such/program", 127, "/no/such/program: executable file not found\n"),
            (
                plain.to_str().unwrap(),
                126,
                ": cannot be executed: Permission denied (os error 13)\n",
            ),
        ] {
            let output = Command::new(&init).arg(program).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{program}");
            assert!(String::from_utf8(output.stderr).unwrap().ends_with(message), "{program}");
        }
    }

    #[test]
    fn init_forwards_signals() {
        let (_dir, init) = install(PROGRAM);
        let mut child = Command::new(&init)
            .args(["sh", "-c", "trap 'exit 9' USR1; echo ready; while :; do read -r _; done"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        send(&child, Signal::USR1);
        // The shell runs its trap after the read, or has already done so and exited: the write may
        // fail.
        let _ = child.stdin.take().unwrap().write_all(b"\n");
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }

    #[test]
    fn idle_init_exits_only_on_termination_signals() {
        let (_dir, init) = install(PROGRAM);
        let mut child = Command::new(&init).spawn().unwrap();
        send(&child, Signal::USR1);
        send(&child, Signal::CHILD);
        send(&child, Signal::TERM);
        let status = child.wait().unwrap();
        // Killed by the signal itself if it came before the program had blocked it.
        assert!(status.code() == Some(0) || status.signal().is_some(), "{status}");
    }
}
