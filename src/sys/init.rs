//! The first process of containers that need no program of their own, and of those that do not
//! collect their orphans.

#[cfg(feature = "kubernetes")]
mod at;
pub mod drain;
#[cfg(feature = "kubernetes")]
pub(crate) mod files;
pub mod frames;
pub mod trials;

/// A static program: without arguments it waits for a signal to end, with `steps FD` it starts steps
/// for whoever connects to that socket, with other arguments it runs them as a program; in any case it
/// collects the processes whose parents are gone. Its source is `init/program.rs`.
pub const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Writes the program by way of another process: a descriptor of ours that a child of another
    /// test inherited for a moment would make it "busy".
    pub fn install() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("init");
        let mut sh = Command::new("sh")
            .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        sh.stdin.take().unwrap().write_all(PROGRAM).unwrap();
        assert!(sh.wait().unwrap().success());
        (dir, path)
    }

    fn send(child: &Child, signal: Signal) {
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    #[test]
    fn ends_as_the_program_it_runs() {
        let (_dir, init) = install();
        for (script, code) in [("exit 7", 7), ("kill -TERM $$", 143), ("true", 0)] {
            let status = Command::new(&init).args(["sh", "-c", script]).status().unwrap();
            assert_eq!(status.code(), Some(code), "{script}");
        }
    }

    #[test]
    fn says_what_cannot_be_run() {
        let (dir, init) = install();
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        for (program, code, message) in [
            ("no-such-program", 127, "no-such-program: executable file not found\n"),
            ("/no/such/program", 127, "/no/such/program: executable file not found\n"),
            (plain.to_str().unwrap(), 126, ": cannot be executed\n"),
        ] {
            let output = Command::new(&init).arg(program).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{program}");
            assert!(String::from_utf8(output.stderr).unwrap().ends_with(message), "{program}");
        }
    }

    #[test]
    fn passes_signals_on() {
        let (_dir, init) = install();
        let mut child = Command::new(&init)
            .args(["sh", "-c", "trap 'exit 9' USR1; echo ready; while :; do read -r _; done"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        send(&child, Signal::USR1);
        // The shell runs its trap when the read ends, or had it run before: then nobody reads any more.
        let _ = child.stdin.take().unwrap().write_all(b"\n");
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }

    #[test]
    fn alone_it_ends_by_a_signal_to_end_and_no_other() {
        let (_dir, init) = install();
        let mut child = Command::new(&init).spawn().unwrap();
        send(&child, Signal::USR1);
        send(&child, Signal::CHILD);
        send(&child, Signal::TERM);
        let status = child.wait().unwrap();
        // Ended by the signal itself if that came before the program had blocked it.
        assert!(status.code() == Some(0) || status.signal().is_some(), "{status}");
    }
}
