//! `step-runner serve`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::{Args, Parser as _};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::trace::LevelFilter;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_files::spawn::raise_file_limit;
use sha2::{Digest as _, Sha256};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use step_runner::engine::Launcher;
use step_runner::jobs::{
    ClientTimeoutPolicy, JobEvent, JobRegistry, ServerSettings, StateDir, VariableMode,
};
use step_runner::log::LogFormat;
use step_runner::service::{GrpcServer, ShutdownTiming};
use step_runner::socket::SocketListener;
use tokio::sync::watch;

use crate::cli::{StepRunnerCli, StepRunnerCommand};
use crate::companion::{Companion, CompanionControl, CompanionMode};
use crate::environment::{self, SOCKET, SOCKET_NAME};
use crate::error::StepRunnerError;
use crate::report::{self, MessageLevel};
use crate::{first, resolver};

/// Time limit for clients to read the rest of the logs after the end of the jobs.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of threads for blocking work: starting and removing jobs, and reading old parts
/// of logs.
const MAX_BLOCKING_THREADS: usize = 64;

/// Shutdown timeout of the async runtime.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Accept jobs on a socket and run them
#[derive(Args, Debug)]
#[command(after_help = "\
When ready, it prints to standard error: step-runner is listening on socket PATH. On SIGTERM or \
SIGINT it accepts no more jobs, stops running ones, and exits; if SIGINT follows, it exits at once. \
The next server on the same socket still has the finished jobs that were not closed, and kills leftover \
processes of jobs if this server was killed.

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
    /// How steps see the variables that GitLab Runner sends
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = VariableMode::Object)]
    variables: VariableMode,
    /// Time between SIGTERM and SIGKILL when a command is stopped
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = crate::quantity::time)]
    grace: Duration,
    /// Time limit of cleanup steps after a job is cancelled
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::quantity::time)]
    cleanup: Duration,
    /// Maximum run time of a job; a longer one fails
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = crate::quantity::time)]
    max_runtime: Duration,
    /// Whether the maximum run time that a client sends applies
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = ClientTimeoutPolicy::Enforce)]
    client_timeout: ClientTimeoutPolicy,
    /// Time to keep finished jobs that were never closed
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::quantity::time)]
    stale_after: Duration,
    /// Maximum number of jobs, including finished but unclosed ones
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    max_jobs: usize,
    /// Maximum size of a job's log, for example 512M or 4G; the rest is dropped
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = crate::quantity::size)]
    max_log: u64,
    /// Format of logs; the job variable CI_STEPS_LOG_FORMAT overrides it [default: stamped]
    #[arg(long, value_enum, value_name = "FORM")]
    log_format: Option<LogFormat>,
    /// Time for running jobs to finish at shutdown; 0s cancels them at once
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = crate::quantity::time)]
    drain: Duration,
    /// Show secrets and the server's environment in the step results sent by FollowSteps
    ///
    /// With this option, a restarted server has no jobs of the previous one.
    #[arg(long)]
    show_secrets: bool,
    /// Log level of messages on standard error
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = MessageLevel::Warn)]
    log_level: MessageLevel,
    /// Command to run alongside the server, which exits when the command does
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Start and stop behaviour of `command`; no option sets it.
    #[arg(skip)]
    mode: CompanionMode,
}

impl ServeArgs {
    /// Returns the arguments with the [`CompanionMode`] that gitlab-runner's `steps serve` expects.
    pub fn for_gitlab_runner(self) -> Self {
        ServeArgs { mode: CompanionMode::AfterInput, ..self }
    }

    /// Returns the minimum level of logged library events: debug, or nothing.
    pub fn events(&self) -> Option<LevelFilter> {
        (self.log_level == MessageLevel::Debug).then_some(LevelFilter::DEBUG)
    }
}

pub fn run(args: ServeArgs) -> Result<CliExit, StepRunnerError> {
    first::become_init();
    // Before this process has threads, and before its limit of open files is raised: steps keep the original one.
    let _launcher = Launcher::shared().map_err(StepRunnerError::Launcher)?;
    let level = args.log_level;
    if let Err(error) = raise_file_limit() {
        level.print(MessageLevel::Warn, &format!("cannot raise the limit of open files: {error}"));
    }
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(StepRunnerError::Signals)?;
    let listener = listen(&args)?;
    let state = StateDir::open(&state_dir(&args, listener.path())?)?;
    if state.leftovers() > 0 {
        let text = format!(
            "cleaned up {} left unfinished by a crashed server",
            job_count(state.leftovers())
        );
        level.print(MessageLevel::Warn, &text);
    }
    for error in state.damaged() {
        let text = format!("dropped a job of an earlier server: {}", chain(error));
        level.print(MessageLevel::Warn, &text);
    }
    for aside in state.set_aside() {
        level.print(MessageLevel::Warn, &chain(&aside));
    }
    let jobs = JobRegistry::new(settings(&args, listener.path())?, state, move |event| {
        let worth = match event {
            JobEvent::Pruned { .. } => MessageLevel::Warn,
            _ => MessageLevel::Info,
        };
        level.print(worth, &event.to_string());
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(StepRunnerError::Threads)?;
    let server = GrpcServer::new(jobs, args.variables, move |notice| {
        level.print(MessageLevel::Warn, &notice.to_string());
    });

    let (stop, stopped) = watch::channel(false);
    let stop = Arc::new(stop);
    report::line(&format!("step-runner is listening on socket {}", listener.path().display()));
    let socket = listener.path();
    let companion = Companion::start(&args.command, socket, args.mode, args.grace, stop.clone())?;
    handle_signals(signals, stop, companion.as_ref().map(Companion::control));
    let stopped = async move {
        let mut stopped = stopped;
        // An error means that all senders are gone, which is a stop as well.
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let timing = ShutdownTiming { drain: args.drain, linger: LINGER_TIMEOUT };
    let served = runtime.block_on(server.serve(&listener, stopped, timing));
    // Drops the jobs and removes their secrets.
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    drop(listener);
    let ended = companion.map_or(Ok(CliExit::Done), Companion::end);
    served?;
    ended
}

fn listen(args: &ServeArgs) -> Result<SocketListener, StepRunnerError> {
    let socket = match (&args.dir, &args.socket) {
        (Some(dir), _) if dir.to_string_lossy().trim().is_empty() => {
            return Err(StepRunnerError::EmptyDir);
        }
        (Some(dir), _) if !dir.is_dir() => return Err(StepRunnerError::NoDir(dir.clone())),
        (Some(dir), _) => dir.join(SOCKET_NAME),
        (None, Some(path)) => path.clone(),
        (None, None) => environment::socket()?,
    };
    Ok(SocketListener::bind(&socket)?)
}

/// Returns a number of jobs in words, such as `1 job`.
pub fn job_count(count: usize) -> String {
    if count == 1 { "1 job".to_owned() } else { format!("{count} jobs") }
}

/// Returns the directory for the files of jobs. The name of the default one depends only on the
/// path of the socket, so that the next server finds the leftovers of a crashed one.
fn state_dir(args: &ServeArgs, socket: &Path) -> Result<PathBuf, StepRunnerError> {
    if let Some(dir) = &args.state_dir {
        return Ok(dir.clone());
    }
    let socket = std::fs::canonicalize(socket).with_path("resolve", socket)?;
    let hash = Sha256::digest(socket.as_os_str().as_encoded_bytes());
    let name: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(environment::private_dir()?.join(format!("state-{name}")))
}

fn settings(args: &ServeArgs, socket: &Path) -> Result<ServerSettings, StepRunnerError> {
    let here = Path::new(".");
    let work_dir = env::current_dir().with_path("resolve", here)?;
    let mut variables = environment::variables();
    if args.mode == CompanionMode::AfterInput
        && let Some(socket) = socket.to_str()
    {
        // GitLab's steps use it to reach their own server.
        variables.insert(SOCKET.to_owned(), socket.to_owned());
    }
    Ok(ServerSettings {
        work_dir,
        env: variables,
        resolver: resolver::open()?,
        grace: args.grace,
        cleanup: args.cleanup,
        max_runtime: args.max_runtime,
        client_timeout: args.client_timeout,
        stale_after: args.stale_after,
        max_jobs: args.max_jobs,
        log_format: args.log_format,
        max_log_bytes: args.max_log,
        show_secrets: args.show_secrets,
    })
}

/// Returns the default time limits of `serve` in readable form.
pub fn time_outs() -> String {
    let command = StepRunnerCli::parse_from(["step-runner", "serve"]).command;
    let StepRunnerCommand::Serve(args) = command else {
        unreachable!("it is the command that was named")
    };
    let ServeArgs { grace, cleanup, max_runtime, stale_after, .. } = args;
    format!(
        "defaults of serve: jobs {} h, finished unclosed jobs {} min, cleanup steps {} s, SIGTERM to SIGKILL {} s",
        max_runtime.as_secs() / 3600,
        stale_after.as_secs() / 60,
        cleanup.as_secs(),
        grace.as_secs()
    )
}

/// Starts a thread that stops the server and the command beside it at SIGINT or SIGTERM. A SIGINT
/// while the server is stopping ends this process at once; a second SIGTERM does not: timeout(1)
/// sends two.
fn handle_signals(
    mut signals: Signals,
    stop: Arc<watch::Sender<bool>>,
    companion: Option<CompanionControl>,
) {
    thread::spawn(move || {
        for signal in signals.forever() {
            let is_second = stop.send_replace(true) && signal == SIGINT;
            if let Some(companion) = &companion {
                if is_second {
                    companion.kill();
                }
                companion.stop(signal);
            }
            if is_second {
                // These signals terminate the process here.
                let _ = emulate_default_handler(signal);
            }
        }
    });
}
