//! `step-runner serve`.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use oci_hooks::step_runner::jobs::{self, Event, Jobs, Settings, State};
use oci_hooks::step_runner::service::{Server, Timing};
use oci_hooks::step_runner::socket::{Listener, private_directory};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::PathContext as _;
use oci_hooks::sys::identity;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sha2::{Digest as _, Sha256};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tokio::sync::watch;

use crate::environment::{self, SOCKET, SOCKET_NAME, Socket};
use crate::error::Error;
use crate::report::{self, Level};
use crate::{Exit, first, resolver};

/// How long clients may read what is left to read when the server ends.
const LINGER: Duration = Duration::from_secs(5);

/// How long what is left may take to end.
const LAST: Duration = Duration::from_secs(1);

/// Take jobs at a socket and run them
#[derive(Args, Debug)]
#[command(after_help = "\
When it is ready it says so on standard error: step-runner is listening on socket PATH. At SIGTERM \
and SIGINT it takes no more jobs, stops those that run, and ends; at a second one it ends at once. \
What a server left that was killed is ended and removed by the next one at the same socket.

Examples:
  step-runner serve                            At the default socket
  step-runner serve --socket /run/steps.sock   At another one
  step-runner serve -- sleep infinity          As long as a command runs

Exit status is 0 after a signal, and that of the command if there is one.")]
pub(crate) struct ServeArgs {
    /// Directory, which must be there, to make step-runner.sock in
    #[arg(conflicts_with = "socket")]
    dir: Option<PathBuf>,
    /// Socket to listen on; STEP_RUNNER_SOCKET, else one in a directory of this user's
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory for the files of jobs; one of this user's that belongs to the socket by default
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// What becomes of the variables that GitLab's runner sends
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Variables::Object)]
    variables: Variables,
    /// Time between SIGTERM and SIGKILL for a command that is stopped
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = crate::time::parse)]
    grace: Duration,
    /// Time for steps that still run when a job is cancelled
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::time::parse)]
    cleanup: Duration,
    /// Time after which a job is stopped that still runs
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = crate::time::parse)]
    max_runtime: Duration,
    /// Time after its end after which a job is forgotten that nobody has closed
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::time::parse)]
    stale_after: Duration,
    /// Number of jobs there may be, those included that nobody has closed
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    max_jobs: usize,
    /// Size up to which the log of a job is kept
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = crate::size::parse)]
    max_log: u64,
    /// Time that jobs have to end by themselves when the server is to end
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::time::parse)]
    drain: Duration,
    /// What is said on standard error
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::Warn)]
    log_level: Level,
    /// Command to run meanwhile; the server ends when it does
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Variables {
    /// Expressions have them as vars, as they are
    Object,
    /// They are expanded and in the environment, too
    Environment,
}

pub(crate) fn run(args: ServeArgs) -> Result<Exit, Error> {
    first::become_init();
    let level = args.log_level;
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(Error::Signals)?;
    let listener = listen(&args)?;
    let state = State::open(&state_dir(&args, listener.path())?)?;
    if state.leftovers() > 0 {
        let text = format!("cleaned up {} jobs of a server that was killed", state.leftovers());
        level.say(Level::Warn, &text);
    }
    for aside in state.set_aside() {
        level.say(Level::Warn, &chain(&aside));
    }
    let jobs = Jobs::new(settings(&args)?, state, move |event| {
        let worth = match event {
            Event::Pruned { .. } => Level::Warn,
            _ => Level::Info,
        };
        level.say(worth, &event.to_string());
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Error::Threads)?;
    let variables = match args.variables {
        Variables::Object => jobs::Variables::Object,
        Variables::Environment => jobs::Variables::Environment,
    };
    let server =
        Server::new(jobs, variables, move |notice| level.say(Level::Warn, &notice.to_string()));

    let (stop, stopped) = watch::channel(false);
    let stop = Arc::new(stop);
    report::line(&format!("step-runner is listening on socket {}", listener.path().display()));
    let companion = start(&args.command, listener.path())?;
    let companion = companion.map(|child| Companion::new(child, stop.clone())).transpose()?;
    heed(signals, stop, companion.as_ref().map(|companion| companion.process.clone()));
    let stopped = async move {
        let mut stopped = stopped;
        // It fails when nobody is left to say so, which is an end as well.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let timing = Timing { drain: args.drain, linger: LINGER };
    let served = runtime.block_on(server.serve(&listener, stopped, timing));
    // With what it runs go the jobs, and with them their files.
    runtime.shutdown_timeout(LAST);
    drop(listener);
    served?;
    companion.map_or(Ok(Exit::Done), |companion| companion.end(args.grace))
}

fn listen(args: &ServeArgs) -> Result<Listener, Error> {
    let socket = match (&args.dir, &args.socket) {
        (Some(dir), _) if dir.to_string_lossy().trim().is_empty() => return Err(Error::EmptyDir),
        (Some(dir), _) if !dir.is_dir() => return Err(Error::NoDir(dir.clone())),
        (Some(dir), _) => Socket::Named(dir.join(SOCKET_NAME)),
        (None, Some(path)) => Socket::Named(path.clone()),
        (None, None) => environment::socket(),
    };
    if let Socket::Default(path) = &socket
        && let Some(dir) = path.parent()
    {
        private_directory(dir)?;
    }
    Ok(Listener::bind(socket.path())?)
}

/// Returns where the files of jobs are: the same place for the same socket, so that what a server
/// left that was killed is found.
fn state_dir(args: &ServeArgs, socket: &Path) -> Result<PathBuf, Error> {
    if let Some(dir) = &args.state_dir {
        return Ok(dir.clone());
    }
    let socket = std::fs::canonicalize(socket).at("resolve", socket)?;
    let hash = Sha256::digest(socket.as_os_str().as_encoded_bytes());
    let name: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let dir = environment::private_dir();
    private_directory(&dir)?;
    Ok(dir.join(format!("state-{name}")))
}

fn settings(args: &ServeArgs) -> Result<Settings, Error> {
    let here = Path::new(".");
    Ok(Settings {
        work_dir: env::current_dir().at("resolve", here)?,
        env: environment::variables(),
        resolver: resolver::open()?,
        grace: args.grace,
        cleanup: args.cleanup,
        max_runtime: args.max_runtime,
        stale_after: args.stale_after,
        max_jobs: args.max_jobs,
        max_log_bytes: args.max_log,
    })
}

/// Starts the command that the server runs for, if there is one.
fn start(words: &[OsString], socket: &Path) -> Result<Option<Child>, Error> {
    let Some((name, arguments)) = words.split_first() else { return Ok(None) };
    let child = Command::new(name).args(arguments).env(SOCKET, socket).spawn();
    let child = child.map_err(|source| Error::Execute { name: name.into(), source })?;
    Ok(Some(child))
}

/// Stops the server at a signal, which the command gets as well; at a second one ends at once.
fn heed(mut signals: Signals, stop: Arc<watch::Sender<bool>>, companion: Option<Arc<OwnedFd>>) {
    thread::spawn(move || {
        for signal in signals.forever() {
            if let (Some(process), Some(signal)) = (&companion, Signal::from_named_raw(signal)) {
                // It may have ended already.
                let _ = pidfd_send_signal(process, signal);
            }
            if stop.send_replace(true) {
                // It does not return for these signals.
                let _ = emulate_default_handler(signal);
            }
        }
    });
}

/// The command that the server runs for.
struct Companion {
    process: Arc<OwnedFd>,
    waiter: thread::JoinHandle<io::Result<ExitStatus>>,
}

impl Companion {
    /// Waits for the command in another thread, which stops the server then.
    fn new(mut child: Child, stop: Arc<watch::Sender<bool>>) -> Result<Self, Error> {
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let process = Arc::new(process.map_err(|error| Error::Command(error.into()))?);
        let waiter = thread::spawn(move || {
            let status = child.wait();
            stop.send_replace(true);
            status
        });
        Ok(Companion { process, waiter })
    }

    /// Returns how the command ended. It had its signal; if it does not end it is killed.
    fn end(self, grace: Duration) -> Result<Exit, Error> {
        if !identity::wait(&self.process, grace).map_err(Error::Command)? {
            // It may have ended just now.
            let _ = pidfd_send_signal(&self.process, Signal::KILL);
        }
        let status = self.waiter.join().expect("waiting does not panic").map_err(Error::Command)?;
        // As a shell has it: of a process that was killed, 128 and the signal.
        let code = status.code().or(status.signal().map(|signal| 128 + signal));
        Ok(Exit::Code(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }
}
