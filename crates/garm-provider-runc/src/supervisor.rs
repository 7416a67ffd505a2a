//! Supervisor of an instance: a process that starts the runner, logs its output, and records its result. The supervisor
//! outlives the call that started it, and GARM.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use oci_hooks_engine::bundle::{self, ExecOptions};
use oci_hooks_engine::container::{
    ContainerError, ContainerRecord, Engine, ExecOutcome, LogWriter, OutputReceiver, StdStream,
};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_files::spawn;
use oci_hooks_host::cgroup;
use oci_hooks_host::identity::{PidNamespace, ProcessIdentity};
use oci_hooks_host::privilege::host_network;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::boot::{
    self, BootSpec, Guest, GuestCommand, GuestError, GuestIds, OutputWatcher, PoolShellError,
};
use super::guest_root::GuestRoot;
use super::http::{HttpClient, HttpError, HttpRetry};
use super::record::{ControllerRecords, InstanceFiles, RunnerOutcome};

/// Cgroup of all supervisors. They leave GARM's cgroup, because a service manager may kill all processes in it.
pub const CGROUP: &str = "/oci-hooks/supervisors";

/// Size limit of `/etc/passwd` and `/etc/group`, larger than any real file.
const MAX_USERS_BYTES: u64 = 4 << 20;

/// Text that a supervisor prints once it is independent of its parent; any other text is an error message.
const READY: &str = "ready";

/// Timeout for a killed process to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between reaps of adopted processes.
const REAP_INTERVAL: Duration = Duration::from_millis(5);

/// Size limit of a serialized task with its scripts and variables, larger than any real one.
const MAX_TASK_BYTES: u64 = 64 << 20;

/// Errors of starting and running a supervisor.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Shell(#[from] PoolShellError),
    #[error("unknown instance {name}")]
    Unknown { name: String },
    /// The parent was killed before it sent the task.
    #[error("received no valid task from the process that started it")]
    NoTask(#[source] serde_json::Error),
    #[error("the supervisor of instance {name} did not start: {message}")]
    Start { name: String, message: String },
}

/// Command line of a supervisor, to which controller id and instance name are added. The program must call
/// [`supervise`].
#[derive(Clone, Debug)]
pub struct SupervisorProgram {
    /// Path of the program, usually this one.
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
}

/// Task of a supervisor, passed only on standard input, because it contains secrets.
#[derive(Serialize, Deserialize)]
pub struct SupervisorTask {
    pub spec: BootSpec,
    pub log: PathBuf,
    pub log_bytes: u64,
    /// Notes about the container for the log.
    pub notes: Vec<String>,
}

/// A supervisor that waits for its task.
pub struct StartingSupervisor {
    child: Child,
    /// Dropped to end the thread that started the child.
    _thread: Sender<()>,
    stdin: ChildStdin,
    name: String,
    path: PathBuf,
}

impl SupervisorProgram {
    /// Starts a supervisor in the network namespace of the host, where GARM is. Until the supervisor has its task, it
    /// is killed when this process exits or the returned value is dropped.
    pub(super) fn start<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        controller: &str,
        name: &str,
    ) -> Result<StartingSupervisor, PathError> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).arg(controller).arg(name).env_clear().current_dir("/");
        // GARM waits until its pipes are closed, so the child must not inherit them.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        spawn::die_with_us(&mut command);
        let (give, take) = sync_channel(1);
        let (thread, ended) = channel();
        let start = move || {
            let _ = give.send(command.spawn());
            // The child is killed when this thread exits. Nothing is ever sent.
            let _ = ended.recv();
        };
        let started = Builder::new().spawn_scoped(scope, move || host_network::run(start));
        started.with_path("start a thread for", &self.path)?;
        let child = take.recv().expect("the thread sends one thing");
        let mut child = child.with_path("execute", &self.path)?;
        let stdin = child.stdin.take().expect("it was asked for");
        Ok(StartingSupervisor {
            child,
            _thread: thread,
            stdin,
            name: name.to_owned(),
            path: self.path.clone(),
        })
    }
}

/// Returns the running supervisors of an instance: the processes of this user, in a PID namespace, with a supervisor's
/// arguments. A process of another user or of a job could have the same arguments.
pub fn supervisors(
    namespace: PidNamespace,
    controller: &str,
    name: &str,
) -> Result<Vec<ProcessIdentity>, PathError> {
    let words = ["supervise", "--", controller, name].map(OsStr::new);
    let mut found = ProcessIdentity::with_words(&words).with_path("list", Path::new("/proc"))?;
    found.retain(|process| namespace.contains(*process) && process.is_of_this_user());
    Ok(found)
}

impl StartingSupervisor {
    /// Sends the task, and waits until the supervisor is independent of this process.
    pub fn hand_over(self, task: &SupervisorTask) -> Result<(), SupervisorError> {
        let StartingSupervisor { mut child, mut stdin, name, path, _thread } = self;
        let text = serde_json::to_vec(task).expect("texts and numbers are JSON");
        // If the supervisor has exited, its answer has the reason.
        let _ = stdin.write_all(&text);
        drop(stdin);
        let mut answer = String::new();
        let mut stdout = child.stdout.take().expect("it was asked for");
        stdout.read_to_string(&mut answer).with_path("read the output of", &path)?;
        if answer == READY {
            return Ok(());
        }
        let _ = child.wait();
        let message =
            if answer.is_empty() { "it exited without a message".to_owned() } else { answer };
        Err(SupervisorError::Start { name, message })
    }

    /// Kills a supervisor that has not received its task.
    pub fn cancel(self) {
        let StartingSupervisor { mut child, stdin, .. } = self;
        drop(stdin);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Starts the runner of an instance and waits for its exit. The process must be dedicated to this: it leaves its
/// session and cgroup, adopts orphans, reads its task from standard input, and answers its parent on standard output.
pub fn supervise(engine: &Engine, controller: &str, name: &str) -> Result<(), SupervisorError> {
    let prepared = prepare(engine, controller, name);
    let mut supervisor = match prepared {
        Ok(supervisor) => supervisor,
        Err(error) => {
            // The parent may have exited.
            let _ = io::stdout().write_all(chain(&error).as_bytes());
            return Err(error);
        }
    };
    let mut stdout = io::stdout();
    let said = stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush());
    said.with_path("write to", Path::new("standard output"))?;
    // The parent reads until standard output is closed.
    let mut null = File::options();
    let null =
        null.read(true).write(true).open("/dev/null").with_path("open", Path::new("/dev/null"))?;
    rustix::stdio::dup2_stdin(&null).with_path("replace", Path::new("standard input"))?;
    rustix::stdio::dup2_stdout(&null).with_path("replace", Path::new("standard output"))?;
    supervisor.run()
}

fn prepare<'a>(
    engine: &'a Engine,
    controller: &str,
    name: &str,
) -> Result<InstanceSupervisor<'a>, SupervisorError> {
    let unknown = || SupervisorError::Unknown { name: name.to_owned() };
    let files = ControllerRecords::of(&engine.store.options().run, controller)
        .files(name)
        .ok_or_else(unknown)?;
    spawn::detach().with_path("become the subreaper of the containers in", &engine.run)?;
    // Failing to enter the cgroup matters only if a service manager kills all processes in GARM's.
    cgroup::enter(CGROUP);
    let input = io::stdin().take(MAX_TASK_BYTES);
    let task: SupervisorTask = serde_json::from_reader(input).map_err(SupervisorError::NoTask)?;
    let record = files.record()?.ok_or_else(unknown)?;
    let container = engine.directory(&record.container).read()?;
    let http = HttpClient::new(&task.spec.http)?;
    let agent_note = boot::check_agent(&task.spec, &http)?;
    let log = LogWriter::open(&task.log, task.log_bytes)?;
    let mut guest = SupervisedContainer::new(engine, container, log)?;
    for note in task.notes.iter().chain(&agent_note) {
        guest.note(note);
    }
    let own = ProcessIdentity::of(std::process::id()).ok_or_else(unknown)?;
    files.write_supervisor(own)?;
    // From now on the supervisor is found by its record.
    spawn::outlive_parent()
        .with_path("clear the parent-death signal of a supervisor in", &engine.run)?;
    Ok(InstanceSupervisor { files, spec: task.spec, http, guest })
}

struct InstanceSupervisor<'a> {
    files: InstanceFiles,
    spec: BootSpec,
    http: HttpClient,
    guest: SupervisedContainer<'a>,
}

impl InstanceSupervisor<'_> {
    fn run(&mut self) -> Result<(), SupervisorError> {
        let result = boot::boot(&self.spec, &mut self.guest, &self.http, HttpRetry::default());
        let at = Timestamp::now();
        // Read now: the removal of the container also removes its cgroup, which has the counters.
        for hit in self.guest.engine.limits_hit(&self.guest.record) {
            self.guest.note(&format!("the instance {hit}"));
        }
        let outcome = match result {
            Ok(()) => {
                self.guest.note("the runner ended with code 0");
                RunnerOutcome::Ended { code: 0, at }
            }
            Err(failure) => {
                let fault = chain(&failure);
                self.guest.note(&fault);
                RunnerOutcome::Failed { fault, at }
            }
        };
        let flushed = self.guest.log.flush().with_path("write the log of", self.guest.root.path());
        // Even if writing fails, as on a full disk, the container must be killed.
        let written = self.files.write_outcome(&outcome);
        // The container's first process only keeps the container running.
        if let Some(process) = self.guest.record.process {
            end(process).with_path("kill the container of", self.guest.root.path())?;
        }
        written?;
        Ok(flushed?)
    }
}

/// Kills a container by its first process, which exits only when all others are reaped. Some of these may be orphans of
/// an aborted runtime command, which this process has adopted.
fn end(process: ProcessIdentity) -> io::Result<()> {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        spawn::collect_ended();
        match process.kill(REAP_INTERVAL) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && Instant::now() < deadline => {}
            result => return result,
        }
    }
}

/// Running container of an instance.
struct SupervisedContainer<'a> {
    engine: &'a Engine,
    record: ContainerRecord,
    log: LogWriter,
    root: GuestRoot,
}

impl<'a> SupervisedContainer<'a> {
    fn new(engine: &'a Engine, record: ContainerRecord, log: LogWriter) -> Result<Self, PathError> {
        let process = record.process;
        let root = GuestRoot::of_process(process.map_or(0, |process| process.pid))?;
        // If the process has exited, its pid may have been reused, and `root` be the host's.
        if !process.is_some_and(|process| process.is_running()) {
            return Err(PathError::new("open", root.path(), Errno::SRCH));
        }
        Ok(SupervisedContainer { engine, record, log, root })
    }

    /// Returns a user with the supplementary groups and the home directory in the instance's `/etc/passwd` and
    /// `/etc/group`. A user without an entry has no groups, and `/` as home directory.
    fn user(&self, owner: GuestIds) -> bundle::ContainerUser {
        let text = |path: &str| {
            let read = self.root.read(Path::new(path), MAX_USERS_BYTES).ok().flatten();
            read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        };
        let (passwd, group) = (text("/etc/passwd"), text("/etc/group"));
        let files = bundle::UserFiles { passwd: &passwd, group: &group };
        let known = files.resolve(&owner.uid.to_string(), &[]).ok();
        bundle::ContainerUser {
            uid: owner.uid,
            gid: owner.gid,
            groups: known.as_ref().map(|user| user.groups.clone()).unwrap_or_default(),
            home: known.map_or_else(|| "/".to_owned(), |user| user.home),
        }
    }
}

/// Length limit of a line passed to the watcher.
const MAX_LINE_BYTES: usize = 4 << 10;

/// The log of a program's output, whose lines are also passed to the watcher.
struct WatchedLog<'a> {
    log: &'a mut LogWriter,
    watcher: &'a mut dyn OutputWatcher,
    /// Incomplete last line of each stream, by [`StdStream`].
    partial: [Vec<u8>; 2],
}

impl OutputReceiver for WatchedLog<'_> {
    fn take(&mut self, stream: StdStream, bytes: &[u8]) {
        self.log.take(stream, bytes);
        let partial = &mut self.partial[stream as usize];
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let room = MAX_LINE_BYTES.saturating_sub(partial.len());
            partial.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < part.len() {
                self.watcher.line(&String::from_utf8_lossy(partial));
                partial.clear();
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.watcher.deadline()
    }
}

impl Guest for SupervisedContainer<'_> {
    fn run_watched(
        &mut self,
        command: &GuestCommand,
        watcher: &mut dyn OutputWatcher,
    ) -> Result<i32, GuestError> {
        let options = ExecOptions {
            args: command.args.clone(),
            env: command.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            cwd: Some(command.cwd.clone()),
            user: Some(self.user(command.owner)),
            ..ExecOptions::default()
        };
        let mut watched = WatchedLog { log: &mut self.log, watcher, partial: [vec![], vec![]] };
        let attended =
            self.engine.exec_to_end(&self.record, &options, &command.stdin, &mut watched)?;
        for partial in watched.partial.iter().filter(|partial| !partial.is_empty()) {
            watched.watcher.line(&String::from_utf8_lossy(partial));
        }
        match attended {
            ExecOutcome::Ended(code) => Ok(code),
            ExecOutcome::TimedOut => Err(GuestError::TimedOut {
                program: command.args.first().cloned().unwrap_or_default(),
                timeout: command.timeout,
            }),
        }
    }

    fn note(&mut self, text: &str) {
        // An unwritable log must not stop the runner.
        let _ = self.log.add(StdStream::Stderr, format!("garm-provider-runc: {text}\n").as_bytes());
    }

    fn write(
        &self,
        path: &Path,
        content: &[u8],
        mode: u32,
        owner: GuestIds,
    ) -> Result<(), GuestError> {
        Ok(self.root.write(path, content, mode, owner)?)
    }

    fn link(&self, path: &Path, target: &Path, owner: GuestIds) -> Result<(), GuestError> {
        Ok(self.root.link(path, target, owner)?)
    }

    fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, GuestError> {
        Ok(self.root.read(path, limit_bytes)?)
    }

    fn remove(&self, path: &Path) -> Result<(), GuestError> {
        Ok(self.root.remove(path)?)
    }
}
