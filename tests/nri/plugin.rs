//! The plugin's process, and its directories.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use oci_hooks::nri::wire::nri::Container;
use oci_hooks::sys::spawn::pass_descriptor;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::program::{self, DEADLINE, wait_until};
use crate::runtime::Runtime;

/// A directory for hooks, the socket, the log and the metrics of a test.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let place = Place(program::temporary_directory());
        fs::create_dir(place.path("hooks.d")).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a hook file with a program, conditions and stages, as they stand in JSON.
    pub(crate) fn hook(&self, name: &str, when: &str, stages: &str) {
        let text = format!(
            r#"{{"version": "1.0.0", "hook": {{"path": "/bin/true", "args": ["{name}"]}},
            "when": {when}, "stages": {stages}}}"#
        );
        self.write(name, &text);
    }

    /// Replaces a hook file, or makes it.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path("hooks.d").join(name)).unwrap();
    }

    /// Returns what the plugin has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log has a text.
    #[track_caller]
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(text, || self.log().contains(text));
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks-nri"));
        command.arg("--hooks-dir").arg(self.path("hooks.d"));
        command.arg("--log-file").arg(self.path("log"));
        command.arg("--metrics").arg(self.path("metrics.prom")).args(options);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts a plugin as runtimes do, and returns the runtime's end of the connection.
    pub(crate) fn start(&self, options: &[&str]) -> (Plugin, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        let mut command = self.command(options);
        command.env("NRI_PLUGIN_SOCKET", theirs.as_raw_fd().to_string());
        command.env("NRI_PLUGIN_NAME", "hooks").env("NRI_PLUGIN_IDX", "42");
        pass_descriptor(&mut command, theirs);
        (Plugin::spawn(command), ours)
    }

    /// Starts a plugin that connects to `nri.sock`.
    pub(crate) fn start_external(&self, options: &[&str]) -> Plugin {
        let mut command = self.command(options);
        command.arg("--socket").arg(self.path("nri.sock"));
        Plugin::spawn(command)
    }

    /// Starts a plugin as runtimes do, and accepts it.
    #[track_caller]
    pub(crate) fn accepted(&self, options: &[&str]) -> (Plugin, Runtime) {
        let (plugin, socket) = self.start(options);
        (plugin, Runtime::accept(socket, ""))
    }

    pub(crate) fn listen(&self) -> UnixListener {
        UnixListener::bind(self.path("nri.sock")).unwrap()
    }
}

/// A plugin's process; it is killed when dropped.
pub(crate) struct Plugin(Option<Child>);

impl Plugin {
    fn spawn(mut command: Command) -> Self {
        Plugin(Some(command.spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until it has ended; returns its status and what it wrote to standard error.
    #[track_caller]
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let mut child = self.0.take().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let status = program::wait(child, DEADLINE).expect("the plugin does not end");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
        (status, text)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// A container that runs a program.
pub(crate) fn container(program: &str) -> Container {
    Container {
        id: "0123456789".to_owned(),
        name: "main".to_owned(),
        args: vec![program.to_owned()],
        ..Container::default()
    }
}

/// Accepts the connection of a plugin that connects by itself.
#[track_caller]
pub(crate) fn accept(listener: &UnixListener) -> Runtime {
    // A test that waits too long is ended by the reads that follow.
    let (socket, _) = listener.accept().unwrap();
    Runtime::accept(socket, "")
}

pub(crate) fn exists(path: &Path) -> bool {
    path.exists()
}
