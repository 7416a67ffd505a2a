//! `index.js`, by which the runner's node starts the program. It must behave as if node executed the program.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use oci_hooks_testsupport::program::{self, DEADLINE};
use rustix::process::{Pid, Signal, kill_process};

use crate::PROGRAM;

/// Program that the script starts in an image.
const INSTALLED: &str = "/usr/local/bin/container-hook";

/// A directory with the script, changed to start another program.
struct ScriptShim(tempfile::TempDir);

impl ScriptShim {
    fn of(program: &Path) -> Self {
        let script = program::repository("contrib/images/arc-runner/index.js");
        let text = fs::read_to_string(script).unwrap();
        assert_eq!(text.matches(INSTALLED).count(), 1, "it names the program once");
        let dir = tempfile::tempdir().unwrap();
        let text = text.replace(INSTALLED, program.to_str().unwrap());
        fs::write(dir.path().join("index.js"), text).unwrap();
        ScriptShim(dir)
    }

    /// Returns a shim whose program is a shell script.
    fn of_shell(text: &str) -> (Self, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        (ScriptShim::of(&program), dir)
    }

    fn start(&self) -> Child {
        let mut command = Command::new("node");
        command.arg("index.js").current_dir(self.0.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("this test needs the program `node`: tests/run installs it")
    }

    fn run(&self, input: Vec<u8>) -> Output {
        let mut child = self.start();
        let mut stdin = child.stdin.take().unwrap();
        thread::spawn(move || {
            // The program may exit without reading.
            let _ = stdin.write_all(&input);
        });
        child.wait_with_output().unwrap()
    }
}

#[test]
fn streams_are_passed_to_the_program() {
    let (shim, _program) = ScriptShim::of_shell("tee /dev/stderr\n");
    let mut random = fastrand::Rng::with_seed(1);
    let input: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1 << 20).collect();
    let output = shim.run(input.clone());
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout == input, "{} bytes", output.stdout.len());
    assert!(output.stderr == input, "{} bytes", output.stderr.len());
}

#[test]
fn shim_exits_like_the_program() {
    for code in [0, 1, 7, 137, 255] {
        let (shim, _program) = ScriptShim::of_shell(&format!("exit {code}\n"));
        assert_eq!(shim.run(Vec::new()).status.code(), Some(code));
    }
    for signal in [
        Signal::HUP,
        Signal::INT,
        Signal::QUIT,
        Signal::KILL,
        Signal::TERM,
        Signal::ABORT,
        Signal::SEGV,
    ] {
        let number = signal.as_raw();
        let (shim, _program) = ScriptShim::of_shell(&format!("ulimit -c 0\nkill -{number} $$\n"));
        let status = shim.run(Vec::new()).status;
        assert_eq!(status.signal(), Some(number), "{status}");
    }
}

#[test]
fn signals_reach_the_program() {
    for (name, signal) in
        [("HUP", Signal::HUP), ("INT", Signal::INT), ("QUIT", Signal::QUIT), ("TERM", Signal::TERM)]
    {
        // The script exits on its own if the signal is lost.
        let text = format!(
            "trap 'echo {name}; exit 7' {name}\necho ready\n\
             for i in $(seq 6000); do sleep 0.1; done\n"
        );
        let (shim, _program) = ScriptShim::of_shell(&text);
        let mut child = shim.start();
        let mut stdout = child.stdout.take().unwrap();
        let mut ready = [0; 6];
        stdout.read_exact(&mut ready).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("{name}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(7), "{name}");
    }
}

#[test]
fn missing_program_fails_the_step_with_a_message() {
    let shim = ScriptShim::of(Path::new("/nowhere/container-hook"));
    let output = shim.run(Vec::new());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("::error::cannot start /nowhere/container-hook: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn killing_node_kills_the_program() {
    check_death(|node| program::wait_until("the program runs", || has_program(node)));
}

#[test]
fn killing_node_at_any_moment_kills_the_program() {
    for delay in (0..30).map(|step| Duration::from_millis(step * 5)) {
        check_death(|_| thread::sleep(delay));
    }
}

/// Kills node after `happens` returns, and checks that the program ends.
fn check_death(happens: impl FnOnce(u32)) {
    // The program waits for input, and holds the pipe as long as it runs.
    let shim = ScriptShim::of(Path::new(PROGRAM));
    let mut child = shim.start();
    let _stdin = child.stdin.take();
    let mut stdout = child.stdout.take().unwrap();
    happens(child.id());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let _ = stdout.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    // If node dies before the program has set its parent-death signal, the program reports that.
    let text = receiver.recv_timeout(DEADLINE).expect("the program does not outlive node");
    assert!(text.is_empty() || text.starts_with("::error::process "), "{text}");
}

/// Returns whether a child of a process runs the program.
fn has_program(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")));
    let children = lists.flatten().collect::<String>();
    children.split_whitespace().any(|child| {
        let program = fs::read_link(format!("/proc/{child}/exe"));
        program.is_ok_and(|program| program.file_name() == Path::new(PROGRAM).file_name())
    })
}

#[test]
fn program_rejects_a_caller_that_is_not_its_parent() {
    let init = Command::new(PROGRAM).args(["as-child", "1"]).output().unwrap();
    assert_eq!(init.status.code(), Some(1));
    let text = String::from_utf8(init.stdout).unwrap();
    assert!(text.starts_with("::error::process 1 did not start this one"), "{text}");
}

#[test]
fn request_reaches_the_program() {
    let shim = ScriptShim::of(Path::new(PROGRAM));
    let output = shim.run(b"{}".to_vec());
    let direct = Command::new(PROGRAM).stdin(Stdio::piped()).output().unwrap();
    assert_eq!(direct.status.code(), Some(1));
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.starts_with(b"::error::"), "{output:?}");
}
