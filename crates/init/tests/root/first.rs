//! A first process and its descendants.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use oci_hooks_files::spawn::pass_descriptor;
use oci_hooks_init::PROGRAM;
use oci_hooks_testsupport::init::install_in;
pub use oci_hooks_testsupport::init::{children, is_alive, status};
pub use oci_hooks_testsupport::program::{DEADLINE, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::connection::TestConnection;

/// Options of starting a first process.
#[derive(Default)]
pub struct StartOptions<'s> {
    /// Programs that execute it, with their arguments.
    pub by: &'s [&'s str],
    /// Environment, in place of the test's.
    pub env: &'s [(&'s str, &'s str)],
    /// Root directory, which contains the program as `/init`.
    pub root: Option<&'s Path>,
}

/// A first process, which is ended with its descendants when dropped.
pub struct FirstProcess {
    child: Child,
    pid: i32,
    dir: tempfile::TempDir,
}

impl FirstProcess {
    pub fn start() -> Self {
        FirstProcess::start_as(&StartOptions::default())
    }

    /// Starts the first process of a new PID namespace.
    pub fn start_in_namespace() -> Self {
        FirstProcess::start_as(&StartOptions { by: &NAMESPACE, ..StartOptions::default() })
    }

    pub fn start_as(start: &StartOptions<'_>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(dir.path(), open).unwrap();
        let program = install_in(start.root.unwrap_or(dir.path()), PROGRAM);
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
        let mut first = FirstProcess { pid: child.id().cast_signed(), child, dir };
        // The first process sends a hello once it has been executed.
        drop(first.connect());
        let all = [vec![first.pid], descendants(first.pid)].concat();
        first.pid = all.into_iter().find(|pid| status(*pid, "Name") == "init").unwrap();
        first
    }

    /// Connects to the first process, and reads the hello.
    pub fn connect(&self) -> TestConnection {
        let mut connection = self.connect_only();
        connection.hello();
        connection
    }

    pub fn connect_only(&self) -> TestConnection {
        TestConnection::new(UnixStream::connect(self.dir.path().join("socket")).unwrap())
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid).unwrap(), signal).unwrap();
    }

    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Returns the content of the container's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the descendants except supervisors.
    pub fn steps(&self) -> Vec<i32> {
        children(self.pid).into_iter().flat_map(descendants).collect()
    }

    /// Waits until no supervisors are left.
    pub fn wait_until_idle(&self) {
        wait_until("no supervisors", || children(self.pid).is_empty());
    }

    /// Waits until no children are left, not even zombies.
    pub fn wait_until_collected(&self) {
        let path = format!("/proc/{0}/task/{0}/children", self.pid);
        wait_until("all are collected", || fs::read_to_string(&path).unwrap().is_empty());
    }

    /// Returns a size of the process's memory in kB, as `/proc/PID/status` names it.
    pub fn memory(&self, name: &str) -> u64 {
        status(self.pid, name).trim_end_matches(" kB").trim().parse().unwrap()
    }
}

impl Drop for FirstProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let send = |pid, signal| {
                let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
            };
            // Ends its descendants too.
            send(self.pid, Signal::TERM);
            wait_until("its end", || !is_alive(self.pid));
            // The programs that started it, and the reader of its log.
            descendants(self.child.id().cast_signed())
                .into_iter()
                .for_each(|pid| send(pid, Signal::KILL));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Command that runs a program as an otherwise unused user.
pub const AS_USER: [&str; 4] = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"];

/// Command that runs a program as the first process of a PID namespace.
pub const NAMESPACE: [&str; 5] = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"];

/// Returns all descendants of a process.
pub fn descendants(pid: i32) -> Vec<i32> {
    children(pid).into_iter().flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}
