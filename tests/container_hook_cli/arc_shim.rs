//! The script by which the runner's node starts the program: it is to be as if node had become it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::PROGRAM;

/// What the script starts, in an image.
const INSTALLED: &str = "/usr/local/bin/container-hook";

/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A directory with the script, which starts another program than the installed one.
struct Shim(tempfile::TempDir);

impl Shim {
    fn of(program: &Path) -> Self {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/images/arc-runner/index.js");
        let text = fs::read_to_string(script).unwrap();
        assert_eq!(text.matches(INSTALLED).count(), 1, "it names the program once");
        let dir = tempfile::tempdir().unwrap();
        let text = text.replace(INSTALLED, program.to_str().unwrap());
        fs::write(dir.path().join("index.js"), text).unwrap();
        Shim(dir)
    }

    /// The same with a shell script as the program.
    fn of_shell(text: &str) -> (Self, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        (Shim::of(&program), dir)
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
            // It may end without reading.
            let _ = stdin.write_all(&input);
        });
        child.wait_with_output().unwrap()
    }
}

#[test]
fn input_output_and_errors_are_the_programs_own() {
    let (shim, _program) = Shim::of_shell("tee /dev/stderr\n");
    let mut random = fastrand::Rng::with_seed(1);
    let input: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(1 << 20).collect();
    let output = shim.run(input.clone());
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stdout == input, "{} bytes", output.stdout.len());
    assert!(output.stderr == input, "{} bytes", output.stderr.len());
}

#[test]
fn it_ends_as_the_program_does() {
    for code in [0, 1, 7, 137, 255] {
        let (shim, _program) = Shim::of_shell(&format!("exit {code}\n"));
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
        let (shim, _program) = Shim::of_shell(&format!("ulimit -c 0\nkill -{number} $$\n"));
        let status = shim.run(Vec::new()).status;
        assert_eq!(status.signal(), Some(number), "{status}");
    }
}

#[test]
fn signals_reach_the_program() {
    for (name, signal) in
        [("HUP", Signal::HUP), ("INT", Signal::INT), ("QUIT", Signal::QUIT), ("TERM", Signal::TERM)]
    {
        // It ends by itself if the signal got lost.
        let text = format!(
            "trap 'echo {name}; exit 7' {name}\necho ready\n\
             for i in $(seq 600); do sleep 0.1; done\n"
        );
        let (shim, _program) = Shim::of_shell(&text);
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
fn a_program_that_is_missing_fails_the_step_in_words() {
    let shim = Shim::of(Path::new("/nowhere/container-hook"));
    let output = shim.run(Vec::new());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("::error::cannot start /nowhere/container-hook: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn the_program_is_killed_with_node_at_any_moment() {
    // It reads its input, which does not end, and has our pipe for as long as it runs.
    let shim = Shim::of(Path::new(PROGRAM));
    for delay in (0..30).map(|step| Duration::from_millis(step * 5)) {
        let mut child = shim.start();
        let _stdin = child.stdin.take();
        let mut stdout = child.stdout.take().unwrap();
        thread::sleep(delay);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        let text = receiver.recv_timeout(DEADLINE);
        // Where node was killed before the program asked to be killed with it, it says so.
        let text = text.unwrap_or_else(|_| panic!("something lives {delay:?} after the start"));
        assert!(text.is_empty() || text.starts_with("::error::process "), "{text}");
    }
}

#[test]
fn the_program_does_not_start_for_whoever_is_not_its_parent() {
    let init = Command::new(PROGRAM).args(["as-child", "1"]).output().unwrap();
    assert_eq!(init.status.code(), Some(1));
    let text = String::from_utf8(init.stdout).unwrap();
    assert!(text.starts_with("::error::process 1 is not the one that started this one"), "{text}");
}

#[test]
fn a_request_gets_through_to_the_program() {
    let shim = Shim::of(Path::new(PROGRAM));
    let output = shim.run(b"{}".to_vec());
    let direct = Command::new(PROGRAM).stdin(Stdio::piped()).output().unwrap();
    assert_eq!(direct.status.code(), Some(1));
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.starts_with(b"::error::"), "{output:?}");
}
