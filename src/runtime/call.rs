//! Calling a runtime: one method for each of its subcommands that an engine needs.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::debug;

use super::error::{Action, RuntimeError};
use super::find::DEFAULT_PATH;
use crate::sys::process::{End, Finished, Limit, Program};
use crate::sys::spawn;

/// Longer than any of the short calls takes on a machine that works; hooks of the container have
/// their own timeouts, so `delete` gets more.
const TIMEOUT: Duration = Duration::from_secs(60);
const HOOKS_TIMEOUT: Duration = Duration::from_secs(600);

/// Which implementation of the runtime command line a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// opencontainers/runc, and whatever calls itself nothing else.
    Runc,
    Crun,
    Youki,
}

impl Kind {
    /// Returns what a program is by its name.
    pub fn of(program: &Path) -> Self {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        match () {
            () if name.contains("crun") => Kind::Crun,
            () if name.contains("youki") => Kind::Youki,
            () => Kind::Runc,
        }
    }
}

/// A runtime and where it keeps the state of our containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    pub kind: Kind,
    pub program: PathBuf,
    /// Its `--root`: apart from that of other engines, so that ids cannot clash.
    pub root: PathBuf,
    /// Whether systemd is asked to make cgroups.
    pub systemd_cgroup: bool,
}

/// Files of a container that is started, and what else it gets.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    pub bundle: &'a Path,
    /// Where the runtime writes the number of the first process.
    pub pid_file: &'a Path,
    /// The runtime's own log.
    pub log: &'a Path,
    /// How many descriptors it passes on, from [`FIRST_DESCRIPTOR`] on.
    pub descriptors: usize,
}

/// The number of the first descriptor that a runtime passes on, after the standard streams.
pub const FIRST_DESCRIPTOR: RawFd = 3;

/// What a runtime knows of a container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct State {
    /// `creating`, `created`, `running`, `paused` or `stopped`.
    pub status: String,
    /// Its first process; 0 when it has none.
    #[serde(default)]
    pub pid: u32,
}

/// The environment of each call. runc is over before there is garbage worth collecting: a tenth of
/// the time of a call goes to that otherwise. crun runs as a copy of itself, which it makes by a mount on
/// a new file in the directory of the last variable, and leaves both when it is killed; where there can be
/// no file it makes the copy in memory. Other runtimes do not know these variables.
const ENV: [(&str, &str); 3] =
    [("PATH", DEFAULT_PATH), ("GOGC", "1000"), ("_LIBCONTAINER_STATEDIR", "/proc")];

impl Runtime {
    /// Returns a runtime that is told apart by its file's name.
    pub fn new(program: PathBuf, root: PathBuf) -> Self {
        Runtime { kind: Kind::of(&program), program, root, systemd_cgroup: false }
    }

    /// Returns a command that creates and starts a container, which gets its streams, and does not
    /// wait for it.
    ///
    /// The runtime's own log goes to a file, since its standard error is the container's.
    pub fn run_detached(&self, id: &str, files: Files<'_>) -> Command {
        let Files { bundle, pid_file, log, descriptors } = files;
        let mut command = self.command();
        command.arg("--log").arg(log).args(["--log-format", "json", "run", "--detach", "--bundle"]);
        command.arg(bundle).arg("--pid-file").arg(pid_file);
        if descriptors > 0 {
            command.arg("--preserve-fds").arg(descriptors.to_string());
        }
        command.arg(id);
        command
    }

    /// Returns whether it is known to pass descriptors on to a container: runc and crun, and what runs
    /// them. Those that run a container behind a kernel of its own cannot.
    pub fn passes_descriptors(&self) -> bool {
        let name = self.program.file_name().unwrap_or_default().to_string_lossy();
        ["runc", "crun", "nvidia-container-runtime", "oci-hooks-runtime"]
            .iter()
            .any(|known| name.contains(known))
    }

    /// Returns a command that runs a container in the foreground, which shares its streams.
    pub fn run(&self, id: &str, bundle: &Path, pid_file: &Path, log: &Path) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(log).args(["--log-format", "json", "run", "--bundle"]);
        command.arg(bundle).arg("--pid-file").arg(pid_file).arg(id);
        command
    }

    /// Returns a command that runs one more process in a container, in the foreground.
    pub fn exec(&self, id: &str, process: &Path) -> Command {
        let mut command = self.command();
        command.args(["exec", "--process"]).arg(process).arg(id);
        command
    }

    /// Returns a command that starts one more process in a container, which gets its streams, and
    /// does not wait for it.
    ///
    /// The runtime's own log goes to a file, since its standard error is the process's.
    pub fn exec_detached(&self, id: &str, process: &Path, pid_file: &Path, log: &Path) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(log).args(["--log-format", "json"]);
        command.args(["exec", "--detach", "--process"]).arg(process);
        command.arg("--pid-file").arg(pid_file).arg(id);
        command
    }

    /// Runs one more process in a container, described by a file, until it ends or its time is up.
    pub fn probe(
        &self,
        id: &str,
        process: &Path,
        pid_file: &Path,
        timeout: Duration,
    ) -> Result<Finished, RuntimeError> {
        let options = self.options();
        let mut arguments: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
        arguments.extend(["exec", "--process"].map(OsStr::new));
        arguments.extend([process.as_os_str(), OsStr::new("--pid-file"), pid_file.as_os_str()]);
        arguments.push(OsStr::new(id));
        self.run_program(&arguments, timeout)
    }

    /// Sends a signal to the first process of a container.
    pub fn kill(&self, id: &str, signal: &str) -> Result<(), RuntimeError> {
        self.call(Action::Kill, id, &["kill", id, signal], TIMEOUT).map(drop)
    }

    /// Stops all processes of a container where they are.
    pub fn pause(&self, id: &str) -> Result<(), RuntimeError> {
        self.call(Action::Pause, id, &["pause", id], TIMEOUT).map(drop)
    }

    /// Has the processes of a paused container go on.
    pub fn resume(&self, id: &str) -> Result<(), RuntimeError> {
        self.call(Action::Resume, id, &["resume", id], TIMEOUT).map(drop)
    }

    /// Deletes a container, killing it if it runs; one that the runtime does not know is no error.
    ///
    /// A caller that was killed leaves its runtime at work: two delete the same files, and the one
    /// that comes second to any of them fails. So a failure counts when the container is still
    /// there a while later.
    pub fn delete(&self, id: &str) -> Result<(), RuntimeError> {
        let directory = self.root.join(id);
        let mut pauses = [10, 40, 150, 600].map(Duration::from_millis).into_iter();
        loop {
            let result = self.call(Action::Delete, id, &["delete", "--force", id], HOOKS_TIMEOUT);
            if !matches!(result, Err(RuntimeError::Failed { .. })) {
                return result.map(drop);
            }
            if !directory.exists() {
                return Ok(());
            }
            match pauses.next() {
                Some(pause) => thread::sleep(pause),
                None => return result.map(drop),
            }
        }
    }

    /// Returns what the runtime knows of a container; nothing if it does not know it.
    pub fn state(&self, id: &str) -> Result<Option<State>, RuntimeError> {
        match self.call(Action::State, id, &["state", id], TIMEOUT) {
            Ok(finished) => {
                let state = serde_json::from_slice(&finished.stdout);
                state.map(Some).map_err(|source| RuntimeError::Answer {
                    program: self.program.clone(),
                    action: Action::State,
                    source,
                })
            }
            Err(RuntimeError::Failed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the first line of what the runtime says of its version.
    pub fn version(&self) -> Result<String, RuntimeError> {
        let finished = self.program(Action::Version, "", &["--version"], TIMEOUT)?;
        let text = String::from_utf8_lossy(&finished.stdout);
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// Returns the error of a `create` or `run` that failed, from its log.
    pub fn logged_error(&self, action: Action, id: &str, log: &Path) -> RuntimeError {
        let text = fs::read(log).unwrap_or_default();
        RuntimeError::failed(&self.program, action, id, &text)
    }

    /// Returns a command with the options that every call has and no environment but ours.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let stdin = spawn::empty_input().map_or_else(|_| Stdio::null(), Stdio::from);
        command.env_clear().envs(ENV).current_dir("/").stdin(stdin);
        command.args(self.options());
        command
    }

    fn options(&self) -> Vec<OsString> {
        let mut options = vec!["--root".into(), self.root.clone().into_os_string()];
        if self.systemd_cgroup {
            options.push("--systemd-cgroup".into());
        }
        options
    }

    fn call(
        &self,
        action: Action,
        id: &str,
        arguments: &[&str],
        timeout: Duration,
    ) -> Result<Finished, RuntimeError> {
        let options = self.options();
        let mut all: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
        all.extend(arguments.iter().map(OsStr::new));
        self.program(action, id, &all, timeout)
    }

    fn program<A: AsRef<OsStr>>(
        &self,
        action: Action,
        id: &str,
        arguments: &[A],
        timeout: Duration,
    ) -> Result<Finished, RuntimeError> {
        debug!(runtime = %self.program.display(), ?action, id, "call the runtime");
        let finished = self.run_program(arguments, timeout)?;
        match finished.end {
            End::Exited(0) => Ok(finished),
            End::TimedOut => Err(RuntimeError::TimedOut {
                program: self.program.clone(),
                action,
                id: id.to_owned(),
                seconds: timeout.as_secs(),
            }),
            _ => Err(RuntimeError::failed(&self.program, action, id, &finished.stderr)),
        }
    }

    fn run_program<A: AsRef<OsStr>>(
        &self,
        arguments: &[A],
        timeout: Duration,
    ) -> Result<Finished, RuntimeError> {
        let mut program = Program::new(&self.program, Path::new("/"));
        program.argv = vec![self.program.as_os_str()];
        program.argv.extend(arguments.iter().map(AsRef::as_ref));
        program.env = ENV.map(|(name, value)| (OsStr::new(name), OsStr::new(value))).into();
        program.timeout = Some(timeout);
        program.stdout = Limit::Truncate(1 << 20);
        Ok(program.run()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crun_is_told_where_it_cannot_leave_a_file() {
        let runtime = Runtime::new("/usr/bin/crun".into(), "/run/oci-hooks/runtime".into());
        let command = runtime.command();
        let (_, value) = command
            .get_envs()
            .find(|(name, _)| *name == "_LIBCONTAINER_STATEDIR")
            .expect("it is one of those that each call gets");
        // Nobody makes files there.
        assert_eq!(value, Some(OsStr::new("/proc")));
    }
}
