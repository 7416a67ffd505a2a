//! The plugin's process and its directories.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use oci_hooks_files::spawn::pass_descriptor;
use oci_hooks_nri::wire::nri::Container;
use oci_hooks_testsupport::program::{self, DEADLINE, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::runtime::SimulatedRuntime;

/// Directory for the hooks, socket, log and metrics of a test.
pub(crate) struct PluginDir(TempDir);

impl PluginDir {
    pub(crate) fn new() -> Self {
        let place = PluginDir(program::temporary_directory());
        fs::create_dir(place.path("hooks.d")).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a hook file with a program, and conditions and stages in JSON.
    pub(crate) fn hook(&self, name: &str, when: &str, stages: &str) {
        let text = format!(
            r#"{{"version": "1.0.0", "hook": {{"path": "/bin/true", "args": ["{name}"]}},
            "when": {when}, "stages": {stages}}}"#
        );
        self.write(name, &text);
    }

    /// Creates or replaces a hook file.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path("hooks.d").join(name)).unwrap();
    }

    /// Returns the plugin's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the log contains a text.
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

    /// Starts a plugin like a runtime, and returns the runtime's end of the connection.
    pub(crate) fn start(&self, options: &[&str]) -> (PluginProcess, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        let mut command = self.command(options);
        command.env("NRI_PLUGIN_SOCKET", theirs.as_raw_fd().to_string());
        command.env("NRI_PLUGIN_NAME", "hooks").env("NRI_PLUGIN_IDX", "42");
        pass_descriptor(&mut command, theirs);
        (PluginProcess::spawn(command), ours)
    }

    /// Starts a plugin that connects to `nri.sock`.
    pub(crate) fn start_external(&self, options: &[&str]) -> PluginProcess {
        let mut command = self.command(options);
        command.arg("--socket").arg(self.path("nri.sock"));
        PluginProcess::spawn(command)
    }

    /// Starts a plugin like a runtime, and accepts it.
    #[track_caller]
    pub(crate) fn start_accepted(&self, options: &[&str]) -> (PluginProcess, SimulatedRuntime) {
        let (plugin, socket) = self.start(options);
        (plugin, SimulatedRuntime::accept(socket, ""))
    }

    pub(crate) fn listen(&self) -> UnixListener {
        UnixListener::bind(self.path("nri.sock")).unwrap()
    }
}

/// The plugin's process, killed on drop.
pub(crate) struct PluginProcess(Option<Child>);

impl PluginProcess {
    fn spawn(mut command: Command) -> Self {
        PluginProcess(Some(command.spawn().unwrap()))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its end; returns its status and stderr.
    #[track_caller]
    pub(crate) fn wait_for_end(mut self) -> (ExitStatus, String) {
        let mut child = self.0.take().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let status = program::wait(child, DEADLINE).expect("the plugin does not end");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
        (status, text)
    }
}

impl Drop for PluginProcess {
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

/// Accepts the connection of a plugin that connects to the runtime.
#[track_caller]
pub(crate) fn accept(listener: &UnixListener) -> SimulatedRuntime {
    // `accept` has no timeout; the reads that follow have one.
    let (socket, _) = listener.accept().unwrap();
    SimulatedRuntime::accept(socket, "")
}

pub(crate) fn exists(path: &Path) -> bool {
    path.exists()
}
