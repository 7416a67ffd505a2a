//! An agent without a container: the program as a process, and its `call`s, whose streams are pipes.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::{Link, Opener};
use crate::sys::init::PROGRAM;

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A first process, which ends with the value.
pub struct TestAgent {
    directory: tempfile::TempDir,
    program: PathBuf,
    serve: Child,
    calls: Mutex<Vec<Child>>,
    /// Whether streams can be opened.
    is_reachable: Mutex<bool>,
}

impl TestAgent {
    pub(in crate::container_hook::kubernetes) fn start() -> Self {
        TestAgent::start_with(&[])
    }

    /// Starts one with arguments before its directory.
    pub fn start_with(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("agent");
        // By another process: a descriptor of ours that a child of another test inherited for a moment would
        // make the program "busy".
        let mut sh = Command::new("sh")
            .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(&program)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        sh.stdin.take().unwrap().write_all(PROGRAM).unwrap();
        assert!(sh.wait().unwrap().success());
        let run = directory.path().join("run");
        fs::create_dir(&run).unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut serve = Command::new(&program);
        serve.arg("serve").args(options).arg(&run);
        let serve = serve.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let serve = serve.spawn().unwrap();
        let calls = Mutex::default();
        let agent = TestAgent { directory, program, serve, calls, is_reachable: Mutex::new(true) };
        let socket = agent.run_directory().join("agent/socket");
        until("it listens", || socket.exists());
        agent
    }

    /// Returns a directory that is there for steps too.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(in crate::container_hook::kubernetes) fn run_directory(&self) -> PathBuf {
        self.directory.path().join("run")
    }

    /// Kills what the streams that are open are to.
    pub fn cut(&self) {
        for mut call in self.calls.lock().unwrap().drain(..) {
            let _ = call.kill();
            let _ = call.wait();
        }
    }

    /// Has streams be openable, or not.
    pub fn set_reachable(&self, is_reachable: bool) {
        *self.is_reachable.lock().unwrap() = is_reachable;
    }

    /// Returns the children of the first process: who keeps and who supervises steps.
    pub fn children(&self) -> Vec<i32> {
        let pid = self.serve.id();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = text.unwrap_or_default();
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        children.filter(|pid| !status(*pid, "State").starts_with('Z')).collect()
    }

    /// Returns the largest that a process has been, of those that there are, in kB.
    pub fn peak_memory(&self) -> u64 {
        let calls = self.calls.lock().unwrap();
        let calls = calls.iter().map(|call| call.id().cast_signed());
        let all = self.children().into_iter().chain(calls).chain([self.serve.id().cast_signed()]);
        let peak = |pid| status(pid, "VmHWM").trim_end_matches(" kB").trim().parse().unwrap_or(0);
        all.map(peak).max().unwrap()
    }

    /// Returns what is in the log of the container.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

impl Opener for TestAgent {
    fn open(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<Link, Box<dyn Error + Send + Sync>>> + '_>> {
        Box::pin(async move {
            while !*self.is_reachable.lock().unwrap() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut call = Command::new(&self.program)
                .arg("call")
                .arg(self.run_directory())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let input = OwnedFd::from(call.stdin.take().unwrap());
            let output = OwnedFd::from(call.stdout.take().unwrap());
            self.calls.lock().unwrap().push(call);
            Ok(Link::new(Sender::from_owned_fd(input)?, Receiver::from_owned_fd(output)?))
        })
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        self.cut();
        let _ = kill_process(Pid::from_child(&self.serve), Signal::TERM);
        let _ = self.serve.wait();
    }
}

/// Returns a line of `/proc/PID/status`; nothing for a process that is gone.
fn status(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a future as programs do.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(2 * DEADLINE, future).await.expect("it takes for ever")
    })
}
