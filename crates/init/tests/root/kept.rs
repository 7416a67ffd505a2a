//! The first process of pods: creates its own socket, runs a program, and keeps steps. Lost streams
//! are tested with their other end, in `container_hook_kubernetes::agent`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use oci_hooks_init::PROGRAM;
use oci_hooks_init::frames::journal::{AttachRequest, END_RECEIVED, StepEvent, StepId};
use oci_hooks_init::frames::{
    ContainerStep, FailureKind, FrameBuffer, MAX_REQUEST_BYTES, StepAnswer, StepRequest, VERSIONS,
};
use oci_hooks_testsupport::init::install_in;
use rustix::process::{Pid, Signal, kill_process};

use crate::connection::{script, step};
use crate::first::{AS_USER, NAMESPACE, children, descendants, status, wait_until};

/// First process in a directory of another user.
struct AgentPod {
    directory: tempfile::TempDir,
    program: PathBuf,
}

struct ServeProcess {
    child: Child,
    log: PathBuf,
}

impl AgentPod {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let open = |path: &Path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        };
        open(directory.path());
        let program = directory.path().join("agent");
        fs::rename(install_in(directory.path(), PROGRAM), &program).unwrap();
        fs::create_dir(directory.path().join("run")).unwrap();
        open(&directory.path().join("run"));
        AgentPod { directory, program }
    }

    fn run(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    fn socket(&self) -> PathBuf {
        self.run().join("agent/socket")
    }

    /// Starts the first process by other programs, to run a program.
    fn serve(&self, by: &[&str], program: &[&str]) -> ServeProcess {
        let log = self.directory.path().join("log");
        let file = fs::File::create(&log).unwrap();
        let own = [self.program.to_str().unwrap(), "serve"];
        let words: Vec<_> = by.iter().chain(&own).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(self.run()).args(program);
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        ServeProcess { child: command.spawn().unwrap(), log }
    }

    fn call(&self, by: &[&str]) -> CallProcess {
        let own = [self.program.to_str().unwrap(), "call"];
        let words: Vec<_> = by.iter().chain(&own).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(self.run());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut call =
            CallProcess { child, input, output, frames: FrameBuffer::new(MAX_REQUEST_BYTES) };
        let (kind, payload) = call.frame();
        assert_eq!(StepAnswer::decode(kind, &payload), Ok(StepAnswer::Hello(VERSIONS)));
        call
    }
}

impl ServeProcess {
    /// Returns the process id of the first process, once it has started.
    fn pid(&self) -> i32 {
        let own = self.child.id().cast_signed();
        let is_agent = |pid: &i32| status(*pid, "Name") == "agent";
        let found = || [vec![own], descendants(own)].concat().into_iter().find(is_agent);
        wait_until("it is there", || found().is_some());
        found().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid()).unwrap(), signal).unwrap();
    }

    fn end(&mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        (status, fs::read_to_string(&self.log).unwrap())
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// The stream of an exec.
struct CallProcess {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    frames: FrameBuffer,
}

impl CallProcess {
    fn frame(&mut self) -> (u8, Vec<u8>) {
        loop {
            if let Some(frame) = self.frames.take().unwrap() {
                return frame;
            }
            let mut bytes = [0; 4096];
            let count = self.output.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "the stream ended");
            self.frames.push(&bytes[..count]);
        }
    }

    fn ask(&mut self, request: &StepRequest) {
        self.input.write_all(&request.encode().unwrap()).unwrap();
    }

    fn begin(&mut self, id: &str, step: ContainerStep) {
        let attach = AttachRequest { id: StepId::new(id).unwrap(), from: 0, step: Some(step) };
        self.ask(&StepRequest::Attach(Box::new(attach)));
    }

    /// Runs a step to its end; returns the output of both streams.
    fn run(&mut self, id: &str, step: ContainerStep) -> (StepAnswer, Vec<u8>) {
        self.begin(id, step);
        let mut written = Vec::new();
        loop {
            let (kind, payload) = self.frame();
            match StepEvent::decode(kind, &payload).unwrap() {
                StepEvent::Output { offset, bytes, .. } => {
                    assert_eq!(offset, written.len() as u64);
                    written.extend(bytes);
                }
                StepEvent::Ended { offset, end, .. } => {
                    assert_eq!(offset, written.len() as u64);
                    self.ask(&StepRequest::Received(END_RECEIVED));
                    return (end, written);
                }
                StepEvent::Started | StepEvent::Heartbeat => {}
            }
            self.ask(&StepRequest::Received(written.len() as u64));
        }
    }
}

impl Drop for CallProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn first_process_of_a_namespace_keeps_steps_and_exits_at_once() {
    let pod = AgentPod::new();
    let mut serve = pod.serve(&NAMESPACE, &[]);
    wait_until("it listens", || pod.socket().exists());
    let mut call = pod.call(&[]);
    let text = "readlink /proc/1/exe; (sleep 1000 &) > /dev/null 2>&1; exit 5";
    let (end, written) = call.run("one", script(text));
    assert_eq!(end, StepAnswer::Exited(5));
    assert_eq!(written, [pod.program.to_str().unwrap().as_bytes(), b"\n"].concat());
    call.begin("two", script("sleep 1000"));
    let pid = serve.pid();
    wait_until("both are there", || children(pid).len() >= 2);
    serve.signal(Signal::TERM);
    let (ended, log) = serve.end();
    assert_eq!((ended.code(), &*log), (Some(143), ""));
    assert_eq!(children(pid), [0; 0]);
}

#[test]
fn init_exits_like_its_program_and_forwards_signals() {
    let pod = AgentPod::new();
    for by in [&[][..], &NAMESPACE] {
        for (program, code, text) in [
            (&["sh", "-c", "echo out; exit 7"][..], 7, "out\n"),
            (&["no-such-program"], 127, "no-such-program: executable file not found\n"),
            (&["sh", "-c", "kill -KILL $$"], 137, ""),
        ] {
            let (ended, log) = pod.serve(by, program).end();
            assert_eq!((ended.code(), &*log), (Some(code), text));
        }
        // A pod that its kubelet ends must not count as one that succeeded.
        for (code, expected) in [(9, 9), (0, 143)] {
            let text = format!("trap 'exit {code}' TERM; echo ready; while :; do sleep 0.01; done");
            let mut serve = pod.serve(by, &["sh", "-c", &text]);
            wait_until("it is ready", || fs::read_to_string(&serve.log).unwrap() == "ready\n");
            let id = format!("s{}-{code}", by.len());
            assert_eq!(pod.call(&[]).run(&id, step(&["true"])).0, StepAnswer::Exited(0));
            serve.signal(Signal::TERM);
            assert_eq!(serve.end().0.code(), Some(expected));
        }
    }
}

#[test]
fn init_restarts_in_the_same_directory_as_any_user() {
    assert!(rustix::process::getuid().is_root(), "this test needs root: tests/run uses sudo");
    let pod = AgentPod::new();
    let by = [&AS_USER[..], &["--bounding-set=-all", "--no-new-privs"]].concat();
    for round in 0..3 {
        let serve = pod.serve(&by, &[]);
        let is_listening = || std::os::unix::net::UnixStream::connect(pod.socket()).is_ok();
        wait_until("it listens", is_listening);
        let found = fs::metadata(pod.socket()).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (4321, 0o600));
        assert_eq!(fs::metadata(pod.run().join("agent")).unwrap().mode() & 0o777, 0o700);
        let (end, written) = pod.call(&by).run(&format!("s{round}"), script("id -u"));
        assert_eq!((end, &*written), (StepAnswer::Exited(0), &b"4321\n"[..]));
        // An earlier step is not run again.
        let mut call = pod.call(&by);
        call.begin("s0", script("echo twice"));
        let ended = loop {
            // Its supervisor may still exist for a moment, and send more frames.
            let (kind, payload) = call.frame();
            if let StepEvent::Ended { offset, end, .. } = StepEvent::decode(kind, &payload).unwrap()
            {
                break (offset, end);
            }
        };
        let is_old = match &ended {
            (_, StepAnswer::Failed(failure)) => {
                [FailureKind::Forgotten, FailureKind::Keeper].contains(&failure.kind)
            }
            // The acknowledgement of its end has not arrived.
            ended => round == 0 && *ended == (5, StepAnswer::Exited(0)),
        };
        assert!(is_old, "{ended:?}");
        serve.signal(Signal::KILL);
    }
    let (ended, log) = pod.serve(&[], &["true"]).end();
    assert_eq!(ended.code(), Some(1));
    assert!(log.contains("belongs to another user"), "{log}");
}
