//! The process that stays with an instance: it brings the runner up, keeps what that writes, and
//! records how it ended. It outlives the call that starts it, and whoever made that call.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::boot::{self, BootSpec, Guest, GuestCommand, GuestError, OutputWatcher, Owner};
use super::guest_root::GuestRoot;
use super::http::{Http, HttpError, HttpOptions};
use super::record::{Files, Outcome, Records};
use crate::bundle::{self, ExecOptions};
use crate::container::{Attendant, Attended, ContainerError, Engine, LogWriter, Record, Stream};
use crate::sys::cgroup;
use crate::sys::error::chain;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::identity::Identity;
use crate::sys::privilege::outside;
use crate::sys::spawn;

/// The cgroup of all supervisors: GARM's own may be ended with all that is in it.
pub const CGROUP: &str = "/oci-hooks/supervisors";

/// More than the files of users in any image have.
const MAX_USERS_BYTES: u64 = 4 << 20;

/// What a supervisor says once it is on its own; anything else is an error.
const READY: &str = "ready";

/// How long a killed process may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How often adopted processes that have ended are reaped.
const REAP_INTERVAL: Duration = Duration::from_millis(5);

/// Larger than any boot spec: scripts and variables are parts of it.
const MAX_BOOT_SPEC_BYTES: u64 = 64 << 20;

/// Why there is nobody to stay with an instance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SupervisorError {
    #[error(transparent)]
    Path(#[from] PathError),
    /// The container cannot be used.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Nothing can be asked for.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// There is nothing to stay with.
    #[error("unknown instance {name}")]
    Unknown { name: String },
    /// Who started it was killed before it had said what to do.
    #[error("no task received from the parent")]
    NoTask(#[source] serde_json::Error),
    /// It did not come up.
    #[error("the supervisor of instance {name} did not start: {message}")]
    Start { name: String, message: String },
}

/// The program that becomes a supervisor, given the controller and the instance's name as further
/// arguments. It has to call [`supervise`].
#[derive(Clone, Debug)]
pub struct SupervisorProgram {
    /// The program, usually the own one.
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
}

/// What a supervisor is told, on standard input and never elsewhere.
#[derive(Serialize, Deserialize)]
pub struct Task {
    pub spec: BootSpec,
    pub log: PathBuf,
    pub log_bytes: u64,
    /// What people should know of the container.
    pub notes: Vec<String>,
}

/// A supervisor that waits for its task.
pub struct Starting {
    child: Child,
    /// Ends the thread that started it.
    _thread: Sender<()>,
    stdin: ChildStdin,
    name: String,
    path: PathBuf,
}

impl SupervisorProgram {
    /// Starts a supervisor in the network of the host, where GARM is. Until it has its task, it ends with
    /// this process or as soon as the value is dropped.
    pub(super) fn start<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        controller: &str,
        name: &str,
    ) -> Result<Starting, PathError> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).arg(controller).arg(name).env_clear().current_dir("/");
        // GARM waits until nobody holds the streams it gave us.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        spawn::die_with_us(&mut command);
        let (give, take) = sync_channel(1);
        let (thread, ended) = channel();
        let start = move || {
            let _ = give.send(command.spawn());
            // The child ends with this thread. Nothing is ever sent.
            let _ = ended.recv();
        };
        let started = Builder::new().spawn_scoped(scope, move || outside::run(start));
        started.at("start a thread for", &self.path)?;
        let child = take.recv().expect("the thread sends one thing");
        let mut child = child.at("execute", &self.path)?;
        let stdin = child.stdin.take().expect("it was asked for");
        Ok(Starting {
            child,
            _thread: thread,
            stdin,
            name: name.to_owned(),
            path: self.path.clone(),
        })
    }
}

impl Starting {
    /// Hands the task over and waits until the supervisor is on its own.
    pub fn hand_over(self, task: &Task) -> Result<(), SupervisorError> {
        let Starting { mut child, mut stdin, name, path, _thread } = self;
        let text = serde_json::to_vec(task).expect("texts and numbers are JSON");
        // One that ended has said why.
        let _ = stdin.write_all(&text);
        drop(stdin);
        let mut answer = String::new();
        let mut stdout = child.stdout.take().expect("it was asked for");
        stdout.read_to_string(&mut answer).at("read from", &path)?;
        if answer == READY {
            return Ok(());
        }
        let _ = child.wait();
        Err(SupervisorError::Start { name, message: answer })
    }

    /// Ends a supervisor that has nothing to do.
    pub fn cancel(self) {
        let Starting { mut child, stdin, .. } = self;
        drop(stdin);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Boots the runner of an instance and stays until it ends. The process must have been made for this:
/// it leaves its session and its cgroup, adopts orphans, takes its task from standard input, and talks
/// to its maker by standard output.
pub fn supervise(engine: &Engine, controller: &str, name: &str) -> Result<(), SupervisorError> {
    let prepared = prepare(engine, controller, name);
    let mut supervisor = match prepared {
        Ok(supervisor) => supervisor,
        Err(error) => {
            // The reader may have ended.
            let _ = io::stdout().write_all(chain(&error).as_bytes());
            return Err(error);
        }
    };
    let mut stdout = io::stdout();
    let said = stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush());
    said.at("write to", Path::new("standard output"))?;
    // The maker reads to the end.
    let mut null = File::options();
    let null = null.read(true).write(true).open("/dev/null").at("open", Path::new("/dev/null"))?;
    rustix::stdio::dup2_stdin(&null).at("replace", Path::new("standard input"))?;
    rustix::stdio::dup2_stdout(&null).at("replace", Path::new("standard output"))?;
    supervisor.run()
}

fn prepare<'a>(
    engine: &'a Engine,
    controller: &str,
    name: &str,
) -> Result<Supervisor<'a>, SupervisorError> {
    let unknown = || SupervisorError::Unknown { name: name.to_owned() };
    let files =
        Records::of(&engine.store.options().run, controller).files(name).ok_or_else(unknown)?;
    spawn::detach().at("leave the session for", &engine.run)?;
    // Where nobody ends what is left in a cgroup, it does not matter.
    cgroup::enter(CGROUP);
    let input = io::stdin().take(MAX_BOOT_SPEC_BYTES);
    let task: Task = serde_json::from_reader(input).map_err(SupervisorError::NoTask)?;
    let record = files.record()?.ok_or_else(unknown)?;
    let container = engine.directory(&record.container).read()?;
    let BootSpec { ca_pem, proxy, .. } = &task.spec;
    let http = Http::new(&HttpOptions { ca_pem: ca_pem.clone(), proxy: proxy.clone() })?;
    let log = LogWriter::open(&task.log, task.log_bytes)?;
    let mut guest = Container::new(engine, container, log)?;
    for note in &task.notes {
        guest.note(note);
    }
    let own = Identity::of(std::process::id()).ok_or_else(unknown)?;
    files.write_supervisor(own)?;
    // From here on it is found by its record.
    spawn::outlive_parent().at("stay with", &engine.run)?;
    Ok(Supervisor { files, spec: task.spec, http, guest })
}

struct Supervisor<'a> {
    files: Files,
    spec: BootSpec,
    http: Http,
    guest: Container<'a>,
}

impl Supervisor<'_> {
    fn run(&mut self) -> Result<(), SupervisorError> {
        let result = boot::boot(&self.spec, &mut self.guest, &self.http);
        let at = Timestamp::now();
        let outcome = match result {
            Ok(()) => {
                self.guest.note("the runner ended with code 0");
                Outcome::Ended { code: 0, at }
            }
            Err(failure) => {
                let fault = chain(&failure);
                self.guest.note(&fault);
                Outcome::Failed { fault, at }
            }
        };
        let flushed = self.guest.log.flush().at("write the log of", self.guest.root.path());
        // Whatever of this fails, as on a full disk: the container must not stay.
        let written = self.files.write_outcome(&outcome);
        // Its first process only keeps it alive.
        if let Some(process) = self.guest.record.process {
            end(process).at("kill the container of", self.guest.root.path())?;
        }
        written?;
        Ok(flushed?)
    }
}

/// Ends a container by its first process. That is gone when all others are collected, and of those we
/// have adopted what a runtime left that did not get to its end.
fn end(process: Identity) -> io::Result<()> {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        spawn::collect_ended();
        match process.kill(REAP_INTERVAL) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && Instant::now() < deadline => {}
            result => return result,
        }
    }
}

/// The instance, as long as its container runs.
struct Container<'a> {
    engine: &'a Engine,
    record: Record,
    log: LogWriter,
    root: GuestRoot,
}

impl<'a> Container<'a> {
    fn new(engine: &'a Engine, record: Record, log: LogWriter) -> Result<Self, PathError> {
        let process = record.process;
        let root = GuestRoot::of_process(process.map_or(0, |process| process.pid))?;
        // If it has ended, that may be the root of another process, the host's.
        if !process.is_some_and(|process| process.is_running()) {
            return Err(PathError::new("open", root.path(), Errno::SRCH));
        }
        Ok(Container { engine, record, log, root })
    }

    /// Returns a user with the groups and the home directory that the instance's own files say.
    fn user(&self, owner: Owner) -> bundle::User {
        let text = |path: &str| {
            let read = self.root.read(Path::new(path), MAX_USERS_BYTES).ok().flatten();
            read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        };
        let (passwd, group) = (text("/etc/passwd"), text("/etc/group"));
        let files = bundle::UserFiles { passwd: &passwd, group: &group };
        let known = files.resolve(&owner.uid.to_string(), &[]).ok();
        bundle::User {
            uid: owner.uid,
            gid: owner.gid,
            groups: known.as_ref().map(|user| user.groups.clone()).unwrap_or_default(),
            home: known.map_or_else(|| "/".to_owned(), |user| user.home),
        }
    }
}

/// How much of a line is watched.
const MAX_LINE_BYTES: usize = 4 << 10;

/// Keeps what a program writes, and has it watched line by line.
struct Watched<'a> {
    log: &'a mut LogWriter,
    watcher: &'a mut dyn OutputWatcher,
    /// The beginnings of lines that have not ended, of both streams.
    partial: [Vec<u8>; 2],
}

impl Attendant for Watched<'_> {
    fn take(&mut self, stream: Stream, bytes: &[u8]) {
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

impl Guest for Container<'_> {
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
        let mut watched = Watched { log: &mut self.log, watcher, partial: [vec![], vec![]] };
        let attended = self.engine.attend(&self.record, &options, &command.stdin, &mut watched)?;
        for partial in watched.partial.iter().filter(|partial| !partial.is_empty()) {
            watched.watcher.line(&String::from_utf8_lossy(partial));
        }
        match attended {
            Attended::Ended(code) => Ok(code),
            Attended::TimedOut => Err(GuestError::TimedOut {
                program: command.args.first().cloned().unwrap_or_default(),
                timeout: command.timeout,
            }),
        }
    }

    fn note(&mut self, text: &str) {
        // A log that cannot be written must not end the runner.
        let _ = self.log.add(Stream::Stderr, format!("garm-provider-runc: {text}\n").as_bytes());
    }

    fn write(
        &self,
        path: &Path,
        content: &[u8],
        mode: u32,
        owner: Owner,
    ) -> Result<(), GuestError> {
        Ok(self.root.write(path, content, mode, owner)?)
    }

    fn link(&self, path: &Path, target: &Path, owner: Owner) -> Result<(), GuestError> {
        Ok(self.root.link(path, target, owner)?)
    }

    fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, GuestError> {
        Ok(self.root.read(path, limit_bytes)?)
    }

    fn remove(&self, path: &Path) -> Result<(), GuestError> {
        Ok(self.root.remove(path)?)
    }
}
