//! `step-runner serve`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, Parser as _, ValueEnum};
use oci_hooks::program::trace::LevelFilter;
use oci_hooks::step_runner::jobs::{self, Event, Jobs, Settings, StateDir};
use oci_hooks::step_runner::log;
use oci_hooks::step_runner::service::{Server, Timing};
use oci_hooks::step_runner::socket::{Listener, private_directory};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::PathContext as _;
use sha2::{Digest as _, Sha256};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tokio::sync::watch;

use crate::cli::{Cli, Command};
use crate::companion::{Companion, Control, Mode};
use crate::environment::{self, SOCKET, SOCKET_NAME, Socket};
use crate::error::Error;
use crate::report::{self, Level};
use crate::{Exit, first, resolver};

/// How long clients may read the remaining log after the jobs have ended.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Shutdown timeout of the async runtime.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Accept jobs on a socket and run them
#[derive(Args, Debug)]
#[command(after_help = "\
When ready, it prints to standard error: step-runner is listening on socket PATH. On SIGTERM or \
SIGINT it accepts no more jobs, stops running ones, and exits; on a second signal it exits at once. \
Processes and files of a killed server are cleaned up by the next one on the same socket.

Examples:
  step-runner serve                            Listen on the default socket
  step-runner serve --socket /run/steps.sock   Listen on another socket
  step-runner serve -- sleep infinity          Serve while a command runs

Exit status is that of COMMAND if there is one, or else 0 after a signal.")]
pub struct ServeArgs {
    /// Existing directory in which to create step-runner.sock
    #[arg(conflicts_with = "socket")]
    dir: Option<PathBuf>,
    /// Socket to listen on [default: STEP_RUNNER_SOCKET, or else one in a private directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory for the files of jobs [default: a private directory for each socket]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// How steps see the variables that GitLab's runner sends
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Variables::Object)]
    variables: Variables,
    /// Time between SIGTERM and SIGKILL when a command is stopped
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = crate::quantity::time)]
    grace: Duration,
    /// Time limit of cleanup steps after a job is cancelled
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::quantity::time)]
    cleanup: Duration,
    /// Maximum run time of a job
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = crate::quantity::time)]
    max_runtime: Duration,
    /// What to do with the maximum run time that a client sends for its job
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = ClientTimeout::Enforce)]
    client_timeout: ClientTimeout,
    /// How long to keep finished jobs that were never closed
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::quantity::time)]
    stale_after: Duration,
    /// Maximum number of jobs, including finished but unclosed ones
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    max_jobs: usize,
    /// Maximum size of the log of a job
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = crate::quantity::size)]
    max_log: u64,
    /// Format of logs; the job variable CI_STEPS_LOG_FORMAT overrides it [default: stamped]
    #[arg(long, value_enum, value_name = "FORM")]
    log_format: Option<LogFormat>,
    /// Shutdown grace period for running jobs
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::quantity::time)]
    drain: Duration,
    /// Show secrets and the server's environment in the results of steps that FollowSteps sends
    #[arg(long)]
    show_secrets: bool,
    /// Log level of messages on standard error
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::Warn)]
    log_level: Level,
    /// Command to run alongside; the server exits with it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// How the command is started, which the command line does not say.
    #[arg(skip)]
    mode: Mode,
}

impl ServeArgs {
    /// Returns the same as gitlab-runner expects it of `steps serve`.
    pub fn of_gitlab(self) -> Self {
        ServeArgs { mode: Mode::AfterInput, ..self }
    }

    /// Returns from which level on events of the library are logged: with the details for debugging.
    pub fn events(&self) -> Option<LevelFilter> {
        (self.log_level == Level::Debug).then_some(LevelFilter::DEBUG)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Variables {
    /// As vars in expressions, not expanded
    Object,
    /// As vars in expressions and in the environment, expanded
    Environment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines with time and stream, for GitLab Runner from 19.0 on
    Stamped,
    /// As it comes, for older runners
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClientTimeout {
    /// Stop the job then, if that is sooner than --max-runtime
    Enforce,
    /// Only --max-runtime counts
    Ignore,
}

pub fn run(args: ServeArgs) -> Result<Exit, Error> {
    first::become_init();
    first::adopt_orphans();
    let level = args.log_level;
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(Error::Signals)?;
    let listener = listen(&args)?;
    let state = StateDir::open(&state_dir(&args, listener.path())?)?;
    if state.leftovers() > 0 {
        let text = format!("cleaned up {} after a crashed server", job_count(state.leftovers()));
        level.print(Level::Warn, &text);
    }
    for aside in state.set_aside() {
        level.print(Level::Warn, &chain(&aside));
    }
    let jobs = Jobs::new(settings(&args, listener.path())?, state, move |event| {
        let worth = match event {
            Event::Pruned { .. } => Level::Warn,
            _ => Level::Info,
        };
        level.print(worth, &event.to_string());
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
        Server::new(jobs, variables, move |notice| level.print(Level::Warn, &notice.to_string()));

    let (stop, stopped) = watch::channel(false);
    let stop = Arc::new(stop);
    report::line(&format!("step-runner is listening on socket {}", listener.path().display()));
    let socket = listener.path();
    let companion = Companion::start(&args.command, socket, args.mode, args.grace, stop.clone())?;
    heed(signals, stop, companion.as_ref().map(Companion::control));
    let stopped = async move {
        let mut stopped = stopped;
        // An error means that all senders are gone, which is a stop as well.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let timing = Timing::new(args.drain, LINGER_TIMEOUT);
    let served = runtime.block_on(server.serve(&listener, stopped, timing));
    // This drops the jobs, and with them their files.
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    drop(listener);
    let ended = companion.map_or(Ok(Exit::Done), Companion::end);
    served?;
    ended
}

fn listen(args: &ServeArgs) -> Result<Listener, Error> {
    let socket = match (&args.dir, &args.socket) {
        (Some(dir), _) if dir.to_string_lossy().trim().is_empty() => return Err(Error::EmptyDir),
        (Some(dir), _) if !dir.is_dir() => return Err(Error::NoDir(dir.clone())),
        (Some(dir), _) => Socket::Named(dir.join(SOCKET_NAME)),
        (None, Some(path)) => Socket::Named(path.clone()),
        (None, None) => environment::socket()?,
    };
    if let Socket::Default(path) = &socket
        && let Some(dir) = path.parent()
    {
        private_directory(dir)?;
    }
    Ok(Listener::bind(socket.path())?)
}

fn job_count(count: usize) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// Returns the directory for the files of jobs. It depends on the socket only, so that the next server
/// finds what a crashed one left.
fn state_dir(args: &ServeArgs, socket: &Path) -> Result<PathBuf, Error> {
    if let Some(dir) = &args.state_dir {
        return Ok(dir.clone());
    }
    let socket = std::fs::canonicalize(socket).at("resolve", socket)?;
    let hash = Sha256::digest(socket.as_os_str().as_encoded_bytes());
    let name: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(environment::private_dir()?.join(format!("state-{name}")))
}

fn settings(args: &ServeArgs, socket: &Path) -> Result<Settings, Error> {
    let here = Path::new(".");
    let work_dir = env::current_dir().at("resolve", here)?;
    let mut variables = environment::variables();
    if args.mode == Mode::AfterInput
        && let Some(socket) = socket.to_str()
    {
        // Steps of GitLab's reach their own server by it.
        variables.insert(SOCKET.to_owned(), socket.to_owned());
    }
    let mut settings = Settings::new(work_dir, variables, resolver::open()?);
    settings.grace = args.grace;
    settings.cleanup = args.cleanup;
    settings.max_runtime = args.max_runtime;
    settings.client_timeout = match args.client_timeout {
        ClientTimeout::Enforce => jobs::ClientTimeout::Enforce,
        ClientTimeout::Ignore => jobs::ClientTimeout::Ignore,
    };
    settings.stale_after = args.stale_after;
    settings.max_jobs = args.max_jobs;
    settings.log_format = args.log_format.map(|format| match format {
        LogFormat::Stamped => log::LogFormat::Stamped,
        LogFormat::Plain => log::LogFormat::Plain,
    });
    settings.max_log_bytes = args.max_log;
    settings.show_secrets = args.show_secrets;
    Ok(settings)
}

/// Returns the limits of time that `serve` has if none is given, for people.
pub fn time_outs() -> String {
    let command = Cli::parse_from(["step-runner", "serve"]).command;
    let Command::Serve(args) = command else { unreachable!("it is the command that was named") };
    let ServeArgs { grace, cleanup, max_runtime, stale_after, .. } = args;
    format!(
        "a job {} h, kept {} min if nobody closes it, cleanup steps {} s, SIGTERM to SIGKILL {} s",
        max_runtime.as_secs() / 3600,
        stale_after.as_secs() / 60,
        cleanup.as_secs(),
        grace.as_secs()
    )
}

/// Stops the server at a signal, and the command beside it; at a second one exits at once.
fn heed(mut signals: Signals, stop: Arc<watch::Sender<bool>>, companion: Option<Control>) {
    thread::spawn(move || {
        for signal in signals.forever() {
            let is_second = stop.send_replace(true);
            if let Some(companion) = &companion {
                if is_second {
                    companion.kill();
                }
                companion.stop(signal);
            }
            if is_second {
                // Does not return for these signals.
                let _ = emulate_default_handler(signal);
            }
        }
    });
}
