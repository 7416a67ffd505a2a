//! Calls a runtime: one method per subcommand that the engine needs.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use oci_hooks_files::find::DEFAULT_PATH;
use oci_hooks_files::fs::read_bounded;
use oci_hooks_files::process::{ChildProgram, FinishedProgram, OutputLimit, ProgramEnd, RunError};
use oci_hooks_host::cgroup::AvailableCgroups;
use oci_hooks_host::identity;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::processes::{ProcessSnapshot, add_descendants};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::debug;

use super::error::{RuntimeAction, RuntimeError};
use super::kind::{RuntimeCapabilities, RuntimeKind};

/// Maximum size of a configuration, larger than any that the engine writes.
const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Names of the runtimes that are searched for by default, in order of preference.
pub const CONFINING: [&str; 2] = ["runc", "crun"];

/// Timeout of a call, enough for a machine whose disk is busy for a minute.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout of a call that may run hooks of the container, which have their own timeouts.
const HOOKS_TIMEOUT: Duration = Duration::from_secs(600);

/// Interval of looking for the PID file of a container that starts in the foreground.
const POLL: Duration = Duration::from_millis(20);

/// A runtime and the directory with the state of our containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OciRuntime {
    pub kind: RuntimeKind,
    pub program: PathBuf,
    /// Directory with the runtime's state of all containers. runc and crun use it as `--root`.
    /// Other runtimes get a `--root` in it for each container, because the names of their files do
    /// not tell which container a file belongs to.
    pub root: PathBuf,
    /// If set, systemd creates the cgroups.
    pub systemd_cgroup: bool,
}

/// Files and descriptors of a container to start.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeFiles<'a> {
    pub bundle: &'a Path,
    /// File to which the runtime writes the PID of the first process.
    pub pid_file: &'a Path,
    pub log: &'a Path,
    /// Number of descriptors to pass on, starting at [`FIRST_DESCRIPTOR`].
    pub descriptors: usize,
}

/// First descriptor that a runtime passes on, after the standard streams.
pub const FIRST_DESCRIPTOR: RawFd = 3;

/// State of a container, as reported by the runtime.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RuntimeState {
    /// `creating`, `created`, `running`, `paused` or `stopped`.
    pub status: String,
    /// PID of the first process; 0 if the container has no process.
    #[serde(default)]
    pub pid: u32,
}

/// Environment of each call. `GOGC`: runc ends before garbage collection, a tenth of its run time,
/// pays off. `_LIBCONTAINER_STATEDIR`: crun runs as a copy of itself, made by a mount on a new file
/// in this directory, and leaves mount and file behind when killed; in `/proc` it cannot create a
/// file, so it makes the copy in memory.
const ENV: [(&str, &str); 3] =
    [("PATH", DEFAULT_PATH), ("GOGC", "1000"), ("_LIBCONTAINER_STATEDIR", "/proc")];

impl OciRuntime {
    /// Creates a runtime whose kind follows from its file name, or from the output of `--version`.
    pub fn new(program: PathBuf, root: PathBuf) -> Self {
        OciRuntime { kind: RuntimeKind::of(&program), program, root, systemd_cgroup: false }
    }

    /// Returns the runtime's `--root` for a container.
    ///
    /// runc and crun share one root, with a directory for each container: a separate root would be
    /// created again by a call that outlives its killed caller, and left behind.
    pub fn root_of(&self, id: &str) -> PathBuf {
        match self.kind {
            RuntimeKind::Runc | RuntimeKind::Crun => self.root.clone(),
            RuntimeKind::Youki | RuntimeKind::Runsc | RuntimeKind::Other => {
                self.state_directory(id)
            }
        }
    }

    /// Returns the directory of the runtime's files of a container.
    pub fn state_directory(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }

    /// Returns whether the runtime has files of a container.
    pub fn has_state(&self, id: &str) -> bool {
        fs::read_dir(self.state_directory(id)).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// Returns the capabilities of the runtime.
    pub fn capabilities(&self) -> RuntimeCapabilities {
        self.kind.capabilities()
    }

    /// Checks that the runtime can run hostile jobs with this privilege and these cgroups of the engine.
    pub fn check(
        &self,
        privilege: Privilege,
        cgroups: &AvailableCgroups,
    ) -> Result<(), RuntimeError> {
        let is_sandbox = self.capabilities().is_sandbox;
        let reason = self.kind.unfit_for_jobs().or_else(|| match privilege {
            _ if !is_sandbox => None,
            Privilege::Root if cgroups.are_usable() => None,
            // The processes of a sandbox are found by their cgroup.
            Privilege::Root => Some(
                "its sandbox needs cgroups, which this host lacks: mount them, or use runc or crun",
            ),
            Privilege::Mapped(_) | Privilege::Single => {
                Some("only root of the host can connect its sandbox to a network: use runc or crun")
            }
        });
        let Some(reason) = reason else { return Ok(()) };
        Err(RuntimeError::Unfit { program: self.program.clone(), kind: self.kind, reason })
    }

    /// Runs a command that starts a container or another process in it, and then ends. A runtime that does not
    /// end is killed with all its descendants.
    pub fn finish(
        &self,
        command: &mut Command,
        action: RuntimeAction,
        id: &str,
        bundle: &Path,
    ) -> Result<ExitStatus, RuntimeError> {
        let child = RuntimeChild::spawn(self, command)?;
        let limit = StartLimit::new(bundle);
        while !child.wait(self, limit.remaining())? {
            if limit.is_over() {
                return Err(child.time_out(self, action, id, limit.limit()));
            }
        }
        child.status(self)
    }

    /// Runs a container in the foreground, by a command of [`run`](Self::run), to its end. A runtime that does not
    /// start the container, or does not end within the timeout after that, is killed with all its descendants.
    /// `pass_on` is called with the PID of the runtime.
    pub fn finish_run(
        &self,
        command: &mut Command,
        id: &str,
        files: (&Path, &Path),
        timeout: Option<Duration>,
        pass_on: impl FnOnce(u32),
    ) -> Result<ExitStatus, RuntimeError> {
        let (bundle, pid_file) = files;
        let child = RuntimeChild::spawn(self, command)?;
        pass_on(child.child.id());
        let limit = StartLimit::new(bundle);
        let mut is_late = false;
        while !child.wait(self, POLL)? && !pid_file.exists() {
            if is_late {
                return Err(child.time_out(self, RuntimeAction::Run, id, limit.limit()));
            }
            is_late = limit.is_over();
        }
        match timeout {
            Some(timeout) if !child.wait(self, timeout)? => {
                Err(child.time_out(self, RuntimeAction::Run, id, timeout))
            }
            _ => child.status(self),
        }
    }

    /// Returns a command that creates and starts a container without waiting for it. The container inherits
    /// the command's streams.
    ///
    /// The runtime's own log goes to a file, since its stderr is the container's.
    pub fn run_detached(&self, id: &str, files: RuntimeFiles<'_>) -> Command {
        let RuntimeFiles { bundle, pid_file, log, descriptors } = files;
        let mut command = self.command(id);
        command.arg("--log").arg(log).args(["--log-format", "json", "run", "--detach", "--bundle"]);
        command.arg(bundle).arg("--pid-file").arg(pid_file);
        if descriptors > 0 {
            command.arg("--preserve-fds").arg(descriptors.to_string());
        }
        command.arg(id);
        command
    }

    /// Returns a command that runs a container in the foreground. The container inherits the command's streams.
    pub fn run(&self, id: &str, bundle: &Path, pid_file: &Path, log: &Path) -> Command {
        let mut command = self.command(id);
        command.arg("--log").arg(log).args(["--log-format", "json", "run", "--bundle"]);
        command.arg(bundle).arg("--pid-file").arg(pid_file).arg(id);
        command
    }

    /// Returns a command that runs another process in a container, in the foreground.
    pub fn exec(&self, id: &str, process: &Path) -> Command {
        let mut command = self.command(id);
        command.args(["exec", "--process"]).arg(process).arg(id);
        command
    }

    /// Returns a command that starts another process in a container without waiting for it. The process
    /// inherits the command's streams.
    ///
    /// The runtime's own log goes to a file, since its stderr is the process's.
    pub fn exec_detached(&self, id: &str, process: &Path, pid_file: &Path, log: &Path) -> Command {
        let mut command = self.command(id);
        command.arg("--log").arg(log).args(["--log-format", "json"]);
        command.args(["exec", "--detach", "--process"]).arg(process);
        command.arg("--pid-file").arg(pid_file).arg(id);
        command
    }

    /// Runs another process in a container, described by a file, until it ends or the timeout expires.
    pub fn probe(
        &self,
        id: &str,
        process: &Path,
        pid_file: &Path,
        timeout: Duration,
    ) -> Result<FinishedProgram, RuntimeError> {
        let options = self.options(id);
        let mut arguments: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
        arguments.extend(["exec", "--process"].map(OsStr::new));
        arguments.extend([process.as_os_str(), OsStr::new("--pid-file"), pid_file.as_os_str()]);
        arguments.push(OsStr::new(id));
        self.run_program(&arguments, timeout)
    }

    /// Sends a signal to the first process of a container.
    pub fn kill(&self, id: &str, signal: &str) -> Result<(), RuntimeError> {
        self.call(RuntimeAction::Kill, id, &["kill", id, signal], TIMEOUT).map(drop)
    }

    /// Suspends all processes of a container.
    pub fn pause(&self, id: &str) -> Result<(), RuntimeError> {
        self.call(RuntimeAction::Pause, id, &["pause", id], TIMEOUT).map(drop)
    }

    /// Resumes the processes of a paused container.
    pub fn resume(&self, id: &str) -> Result<(), RuntimeError> {
        self.call(RuntimeAction::Resume, id, &["resume", id], TIMEOUT).map(drop)
    }

    /// Deletes a container, killing it if it runs. A container that the runtime does not know is no error.
    ///
    /// The runtime of a killed caller keeps running: two runtimes then delete the same files, and the later
    /// one fails. So a failure counts only if the container still exists a while later.
    pub fn delete(&self, id: &str) -> Result<(), RuntimeError> {
        let mut pauses = [10, 40, 150, 600].map(Duration::from_millis).into_iter();
        loop {
            let result =
                self.call(RuntimeAction::Delete, id, &["delete", "--force", id], HOOKS_TIMEOUT);
            if !matches!(result, Err(RuntimeError::Failed { .. })) {
                return result.map(drop);
            }
            if self.state(id)?.is_none() {
                return Ok(());
            }
            match pauses.next() {
                Some(pause) => thread::sleep(pause),
                None => return result.map(drop),
            }
        }
    }

    /// Returns the state of a container, or `None` if the runtime does not know it.
    pub fn state(&self, id: &str) -> Result<Option<RuntimeState>, RuntimeError> {
        match self.call(RuntimeAction::State, id, &["state", id], TIMEOUT) {
            Ok(finished) => {
                let state = serde_json::from_slice(&finished.stdout);
                state.map(Some).map_err(|source| RuntimeError::Answer {
                    program: self.program.clone(),
                    id: id.chars().take(12).collect(),
                    source,
                })
            }
            Err(RuntimeError::Failed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn not_executed(&self, source: io::Error) -> RuntimeError {
        RuntimeError::Execute(RunError::Execute { path: self.program.clone(), source })
    }

    fn not_followed(&self, source: io::Error) -> RuntimeError {
        RuntimeError::Execute(RunError::Follow { path: self.program.clone(), source })
    }

    /// Returns the error of a failed `run` or `exec`, from its log.
    pub fn logged_error(&self, action: RuntimeAction, id: &str, log: &Path) -> RuntimeError {
        let text = fs::read(log).unwrap_or_default();
        RuntimeError::from_output(&self.program, action, id, &text)
    }

    /// Returns a command with the options of every call and only our environment.
    fn command(&self, id: &str) -> Command {
        let mut command = Command::new(&self.program);
        // Not the host's `/dev/null`: crun changes the owner of standard streams to the process's user, and all
        // processes share that file.
        let stdin = io::pipe().map_or_else(|_| Stdio::null(), |(empty, _)| empty.into());
        command.env_clear().envs(ENV).current_dir("/").stdin(stdin);
        command.args(self.options(id));
        command
    }

    fn options(&self, id: &str) -> Vec<OsString> {
        let mut options = vec!["--root".into(), self.root_of(id).into_os_string()];
        if self.systemd_cgroup {
            options.push("--systemd-cgroup".into());
        }
        options
    }

    fn call(
        &self,
        action: RuntimeAction,
        id: &str,
        arguments: &[&str],
        timeout: Duration,
    ) -> Result<FinishedProgram, RuntimeError> {
        let options = self.options(id);
        let mut all: Vec<&OsStr> = options.iter().map(OsString::as_os_str).collect();
        all.extend(arguments.iter().map(OsStr::new));
        debug!(runtime = %self.program.display(), ?action, id, "call the runtime");
        let finished = self.run_program(&all, timeout)?;
        match finished.end {
            ProgramEnd::Exited(0) => Ok(finished),
            ProgramEnd::TimedOut => Err(RuntimeError::TimedOut {
                program: self.program.clone(),
                action,
                id: id.chars().take(12).collect(),
                seconds: timeout.as_secs(),
                hint: None,
            }),
            _ => Err(RuntimeError::from_output(&self.program, action, id, &finished.stderr)),
        }
    }

    fn run_program<A: AsRef<OsStr>>(
        &self,
        arguments: &[A],
        timeout: Duration,
    ) -> Result<FinishedProgram, RuntimeError> {
        let mut program = ChildProgram::new(&self.program, Path::new("/"));
        program.argv = vec![self.program.as_os_str()];
        program.argv.extend(arguments.iter().map(AsRef::as_ref));
        program.env = ENV.map(|(name, value)| (OsStr::new(name), OsStr::new(value))).into();
        program.timeout = Some(timeout);
        program.stdout = OutputLimit::Truncate(1 << 20);
        Ok(program.run()?)
    }
}

/// Timeout for a runtime to start a container: longer if the container has hooks.
struct StartLimit<'a> {
    bundle: &'a Path,
    start: Instant,
}

impl<'a> StartLimit<'a> {
    fn new(bundle: &'a Path) -> Self {
        StartLimit { bundle, start: Instant::now() }
    }

    /// Returns the limit. Reads the configuration only if the call has taken longer than
    /// [`TIMEOUT`].
    fn limit(&self) -> Duration {
        if self.start.elapsed() < TIMEOUT {
            return TIMEOUT;
        }
        let config = read_bounded(&self.bundle.join("config.json"), MAX_CONFIG_BYTES);
        let config = config.ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let has_hooks = config.is_some_and(|config| config.get("hooks").is_some());
        if has_hooks { HOOKS_TIMEOUT } else { TIMEOUT }
    }

    fn remaining(&self) -> Duration {
        self.limit().saturating_sub(self.start.elapsed())
    }

    fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }
}

/// A running call of a runtime.
struct RuntimeChild {
    child: Child,
    pidfd: OwnedFd,
}

impl RuntimeChild {
    fn spawn(runtime: &OciRuntime, command: &mut Command) -> Result<Self, RuntimeError> {
        let mut child = command.spawn().map_err(|source| runtime.not_executed(source))?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(RuntimeChild { child, pidfd }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(runtime.not_followed(error.into()))
            }
        }
    }

    /// Returns whether the runtime ends before the timeout.
    fn wait(&self, runtime: &OciRuntime, timeout: Duration) -> Result<bool, RuntimeError> {
        identity::wait(&self.pidfd, timeout).map_err(|source| runtime.not_followed(source))
    }

    fn status(mut self, runtime: &OciRuntime) -> Result<ExitStatus, RuntimeError> {
        self.child.wait().map_err(|source| runtime.not_followed(source))
    }

    fn time_out(
        mut self,
        runtime: &OciRuntime,
        action: RuntimeAction,
        id: &str,
        limit: Duration,
    ) -> RuntimeError {
        kill_tree(self.child.id());
        // A killed process may hang in the kernel.
        if self.wait(runtime, TIMEOUT).unwrap_or(false) {
            let _ = self.child.wait();
        }
        let hint = runtime.capabilities().is_sandbox.then_some(
            "its sandbox does not start: the platform `kvm` needs working hardware virtualization; \
             use `--platform=systrap` or `ptrace`",
        );
        RuntimeError::TimedOut {
            program: runtime.program.clone(),
            action,
            id: id.chars().take(12).collect(),
            seconds: limit.as_secs(),
            hint,
        }
    }
}

/// Kills a child of this process, and all its descendants. Each is stopped first: the descendants of a process that
/// has ended have other parents, and cannot be found any more.
fn kill_tree(child: u32) {
    let mut stopped: Vec<ProcessSnapshot> = Vec::new();
    loop {
        let all = ProcessSnapshot::list_all();
        let tree = add_descendants(&all, &HashSet::from([child]));
        let is_known =
            |it: &ProcessSnapshot| stopped.iter().any(|one| one.identity() == it.identity());
        let found = all.into_iter().filter(|it| tree.contains(&it.pid) && !is_known(it));
        let found: Vec<_> = found.filter(|it| !it.is_zombie).collect();
        if found.is_empty() {
            break;
        }
        for process in &found {
            let _ = process.signal(Signal::STOP);
        }
        stopped.extend(found);
    }
    for process in stopped {
        let _ = process.signal(Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};

    use super::*;

    #[test]
    fn a_runtime_that_does_not_end_is_killed_with_its_descendants() {
        let runtime = OciRuntime::new("/usr/bin/runsc".into(), "/run/oci-hooks/runtime".into());
        let mut command = Command::new("sh");
        command
            .args(["-c", "setsid sh -c 'sleep 1000 & echo $!; wait' & exec sleep 1000"])
            .stdout(Stdio::piped());
        let mut child = RuntimeChild::spawn(&runtime, &mut command).unwrap();
        let mut line = String::new();
        BufReader::new(child.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let [first, last] = [child.child.id(), line.trim().parse().unwrap()]
            .map(|pid| identity::ProcessIdentity::of(pid).unwrap());
        let limit = StartLimit::new(Path::new("/nonexistent")).limit();
        let error = child.time_out(&runtime, RuntimeAction::Run, "0123456789abcdef", limit);
        let text = error.to_string();
        assert!(text.starts_with("/usr/bin/runsc did not run container 0123456789ab within 300"));
        assert!(text.contains("use `--platform=systrap` or `ptrace`"), "{text}");
        assert!(!first.is_running());
        while last.is_running() {
            thread::yield_now();
        }
    }

    #[test]
    fn a_runtime_that_hangs_after_the_start_is_killed_at_the_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let runtime = OciRuntime::new("/usr/bin/crun".into(), dir.path().to_owned());
        let mut command = Command::new("sh");
        command.args(["-c", "echo 1 >\"$0\"; exec sleep 1000"]).arg(&pid_file);
        let (files, timeout) = ((dir.path(), &*pid_file), Duration::from_millis(1));
        let mut pid = None;
        let ended =
            runtime.finish_run(&mut command, "id", files, Some(timeout), |id| pid = Some(id));
        assert!(matches!(ended, Err(RuntimeError::TimedOut { .. })), "{ended:?}");
        assert!(identity::ProcessIdentity::of(pid.unwrap()).is_none());
    }

    #[test]
    fn errors_of_malformed_states_name_the_container() {
        let runtime = OciRuntime::new("/bin/echo".into(), "/run/runtime".into());
        let error = runtime.state("0123456789abcdef").unwrap_err().to_string();
        assert_eq!(error, "/bin/echo reported a malformed state of container 0123456789ab");
    }

    #[test]
    fn each_container_has_its_own_state_directory() {
        for (program, root) in
            [("/usr/bin/runc", "/run/runtime"), ("/usr/bin/runsc", "/run/runtime/a")]
        {
            let runtime = OciRuntime::new(program.into(), "/run/runtime".into());
            let command = runtime.exec("a", Path::new("/p"));
            let words: Vec<_> = command.get_args().take(2).collect();
            assert_eq!(words, ["--root", root]);
            assert_eq!(runtime.state_directory("a"), Path::new("/run/runtime/a"));
        }
    }

    #[test]
    fn a_sandbox_needs_root_and_cgroups() {
        let runtime = |name: &str| OciRuntime::new(name.into(), "/run/oci-hooks/runtime".into());
        let (host, none) = (AvailableCgroups::Host, AvailableCgroups::None);
        let check = |name: &str, privilege, cgroups| {
            runtime(name).check(privilege, cgroups).map_err(|error| error.to_string())
        };
        assert_eq!(check("/usr/bin/runsc", Privilege::Root, &host), Ok(()));
        assert_eq!(check("/usr/bin/runc", Privilege::Single, &none), Ok(()));
        let said = check("/usr/bin/runsc", Privilege::Single, &host).unwrap_err();
        assert!(said.starts_with("/usr/bin/runsc (runsc) cannot run jobs: only root"), "{said}");
        let said = check("/usr/bin/runsc", Privilege::Root, &none).unwrap_err();
        assert!(said.contains("cgroups, which this host lacks"), "{said}");
        let said = check("/usr/bin/youki", Privilege::Root, &host).unwrap_err();
        assert!(said.contains("without the seccomp profile"), "{said}");
    }

    #[test]
    fn crun_gets_an_unwritable_state_directory() {
        let runtime = OciRuntime::new("/usr/bin/crun".into(), "/run/oci-hooks/runtime".into());
        let command = runtime.command("a");
        let (_, value) = command
            .get_envs()
            .find(|(name, _)| *name == "_LIBCONTAINER_STATEDIR")
            .expect("it is one of those that each call gets");
        // No user can create files in /proc.
        assert_eq!(value, Some(OsStr::new("/proc")));
    }
}
