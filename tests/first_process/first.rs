//! A first process that was started, and what is below it.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oci_hooks::sys::init::PROGRAM;
use oci_hooks::sys::spawn::pass_descriptor;
use rustix::process::{Pid, Signal, kill_process};

use crate::connection::Connection;

/// Longer than anything here takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// How a first process is started.
#[derive(Default)]
pub(crate) struct Start<'s> {
    /// Programs that execute it, with their arguments.
    pub(crate) by: &'s [&'s str],
    /// The environment instead of this test's.
    pub(crate) env: &'s [(&'s str, &'s str)],
    /// The directory that it has as its root; it is `/init` there.
    pub(crate) root: Option<&'s Path>,
}

/// A first process; it and what is below it end with the value.
pub(crate) struct First {
    child: Child,
    pid: i32,
    dir: tempfile::TempDir,
}

impl First {
    pub(crate) fn start() -> Self {
        First::start_as(&Start::default())
    }

    /// Starts it as the first process of a PID namespace.
    pub(crate) fn start_in_namespace() -> Self {
        First::start_as(&Start { by: &NAMESPACE, ..Start::default() })
    }

    pub(crate) fn start_as(start: &Start<'_>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(dir.path(), open).unwrap();
        let program = install(start.root.unwrap_or(dir.path()));
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let mut words: Vec<_> = start.by.iter().map(ToString::to_string).collect();
        match start.root {
            None => words.push(program.to_str().unwrap().to_owned()),
            Some(root) => {
                words.extend(["chroot", root.to_str().unwrap(), "/init"].map(str::to_owned));
            }
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("steps").arg(listener.as_raw_fd().to_string());
        if !start.env.is_empty() {
            command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
            command.envs(start.env.iter().copied());
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        pass_descriptor(&mut command, listener.into());
        let child = command.spawn().unwrap();
        let mut first = First { pid: child.id().cast_signed(), child, dir };
        // It says hello as soon as it is there as itself.
        drop(first.connect());
        let all = [vec![first.pid], below(first.pid)].concat();
        first.pid = all.into_iter().find(|pid| status(*pid, "Name") == "init").unwrap();
        first
    }

    /// Connects, and reads the hello.
    pub(crate) fn connect(&self) -> Connection {
        let mut connection = self.connect_only();
        connection.hello();
        connection
    }

    pub(crate) fn connect_only(&self) -> Connection {
        Connection::new(UnixStream::connect(self.dir.path().join("socket")).unwrap())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid).unwrap(), signal).unwrap();
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Returns what is in the log of the container.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the processes below it, but for supervisors.
    pub(crate) fn steps(&self) -> Vec<i32> {
        children(self.pid).into_iter().flat_map(below).collect()
    }

    /// Waits until it has no supervisors.
    pub(crate) fn until_idle(&self) {
        until("no supervisors", || children(self.pid).is_empty());
    }

    /// Waits until it has no children, those that it has to collect neither.
    pub(crate) fn until_collected(&self) {
        let path = format!("/proc/{0}/task/{0}/children", self.pid);
        until("all are collected", || fs::read_to_string(&path).unwrap().is_empty());
    }

    /// Returns a size of the process's memory in kB, as `/proc/PID/status` names it.
    pub(crate) fn memory(&self, name: &str) -> u64 {
        status(self.pid, name).trim_end_matches(" kB").trim().parse().unwrap()
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let send = |pid, signal| {
                let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
            };
            // Ends what is below it too.
            send(self.pid, Signal::TERM);
            until("its end", || !is_alive(self.pid));
            // What started it, and what reads its log.
            below(self.child.id().cast_signed())
                .into_iter()
                .for_each(|pid| send(pid, Signal::KILL));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What makes it the first process of a PID namespace.
pub(crate) const NAMESPACE: [&str; 5] =
    ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"];

/// Writes the program by way of another process: a descriptor of ours that a child of another test
/// inherited for a moment would make it "busy".
pub(crate) fn install(dir: &Path) -> PathBuf {
    let path = dir.join("init");
    let mut sh = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    sh.stdin.take().unwrap().write_all(PROGRAM).unwrap();
    assert!(sh.wait().unwrap().success());
    path
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        std::thread::yield_now();
    }
}

/// Returns the children of a process that are not only waiting to be collected.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    let children = text.split_whitespace().map(|pid| pid.parse().unwrap());
    children.filter(|pid| is_alive(*pid)).collect()
}

/// Returns all processes below one.
pub(crate) fn below(pid: i32) -> Vec<i32> {
    children(pid).into_iter().flat_map(|child| [vec![child], below(child)].concat()).collect()
}

pub(crate) fn is_alive(pid: i32) -> bool {
    let state = status(pid, "State");
    !(state.is_empty() || state.starts_with('Z') || state.starts_with('X'))
}

/// Returns a line of `/proc/PID/status`; nothing for a process that is gone.
pub(crate) fn status(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
