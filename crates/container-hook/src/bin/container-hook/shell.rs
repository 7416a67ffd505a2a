//! `container-hook shell`.

use std::env;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use clap::Args;
use clap_complete::ArgValueCandidates;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::bundle::ExecOptions;
use oci_hooks_engine::container::{
    ContainerError, ContainerRecord, ContainerRole, Engine, StepConnection, StepSocket,
    step_directory,
};
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_init::frames::ContainerStep;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::settings::HookFileSettings;
use crate::signals::PendingSignals;
use crate::{jobs, names};

/// Command of the shell: bash if the image has it, else sh.
const SHELL: [&str; 3] =
    ["sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"];

/// Open a shell in the container of a running job
#[derive(Debug, Args)]
#[command(after_help = "\
The shell has the user, the environment and the limits of the job's container, and ends with it.
Variables of single steps, such as secrets, are not in it.
Only the user that runs the job's runner can open it.

Examples:
  container-hook shell                        The only job of this machine
  container-hook shell build --service redis  A service of the job with the container build
  container-hook shell build -- env           Run a program instead of a shell")]
pub struct ShellArgs {
    /// Id, prefix of the id, or name of a container of the job (default: the only job)
    #[arg(add = ArgValueCandidates::new(names::containers))]
    pub job: Option<String>,

    /// Open the shell in the job's service of this name, instead of the job's container
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,

    /// Program to run instead of a shell, with its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<String>,
}

pub fn run(args: &ShellArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let settings = settings_file::load::<HookFileSettings>(context)?.settings;
    match JobBackend::of(&settings)? {
        JobBackend::Root | JobBackend::User => {}
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => return Err(HookCommandError::NoShell),
    }
    let (engine, record) = find(&settings, args)?;
    let words = match &args.program[..] {
        [] => SHELL.map(str::to_owned).to_vec(),
        words => words.to_vec(),
    };
    if record.steps.is_some() {
        in_job(&engine, &record, words)
    } else {
        by_runtime(&settings, &record, words)
    }
}

/// Returns the container to open the shell in, with its engine.
fn find(
    settings: &HookFileSettings,
    args: &ShellArgs,
) -> Result<(Engine, ContainerRecord), HookCommandError> {
    let mut found = Vec::new();
    for store in jobs::of(&settings.store).stores()? {
        let engine = settings.with_store(&store).host().into_existing_engine()?;
        let containers = engine.containers()?;
        let is_named = |record: &&ContainerRecord| {
            let is_it =
                |id: &String| record.name == *id || (!id.is_empty() && record.id.starts_with(id));
            args.job.as_ref().is_none_or(is_it)
        };
        let mut owners: Vec<_> =
            containers.iter().filter(is_named).map(|record| &record.owner).collect();
        owners.sort();
        owners.dedup();
        let selected = |record: &&ContainerRecord| match &args.service {
            None => record.role == ContainerRole::Job,
            Some(name) => record.role == ContainerRole::Service && record.name == *name,
        };
        let all: Vec<_> = containers
            .iter()
            .filter(selected)
            .filter(|r| owners.contains(&&r.owner))
            .cloned()
            .collect();
        if !all.is_empty() {
            found.push((engine, all));
        }
    }
    let count: usize = found.iter().map(|(_, all)| all.len()).sum();
    match (found.pop(), count) {
        (Some((engine, mut all)), 1) => Ok((engine, all.remove(0))),
        (None, _) => Err(HookCommandError::NoSuchJob),
        _ => Err(HookCommandError::SeveralJobs),
    }
}

/// Runs a program through the init process of a job container, like a step.
fn in_job(
    engine: &Engine,
    record: &ContainerRecord,
    words: Vec<String>,
) -> Result<CliExit, HookCommandError> {
    let directory = step_directory(&engine.run);
    let socket = StepSocket { directory: &directory, id: &record.id };
    let terminal = env::var("TERM").ok().filter(|name| !name.contains('\0'));
    let step = ContainerStep {
        args: words.into_iter().map(String::into_bytes).collect(),
        env: terminal.map(|name| (b"TERM".to_vec(), name.into_bytes())).into_iter().collect(),
        ..ContainerStep::default()
    };
    let mut signals = PendingSignals::with_resizing()
        .with_path("catch signals for a shell through a socket in", &directory)?;
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let connection = StepConnection::open(socket)?;
    let raw = RawTerminal::of(stdin.as_fd())
        .with_path("change the mode of the terminal", Path::new("/dev/stdin"))?;
    let output = [stdout.as_fd(), stderr.as_fd()];
    let end = connection.run_with_input(step, &mut signals, stdin.as_fd(), output);
    drop(raw);
    match end {
        Ok(end) => Ok(CliExit::Code(end.code())),
        Err(error) => Err(error.into()),
    }
}

/// Runs a program in a container with `exec` of its runtime.
fn by_runtime(
    settings: &HookFileSettings,
    record: &ContainerRecord,
    words: Vec<String>,
) -> Result<CliExit, HookCommandError> {
    let store = match jobs::enter_job(settings, record)? {
        EnterOutcome::Inside(store) => store,
        EnterOutcome::Ended(exit) => return Ok(exit),
    };
    let engine = settings.with_store(&store).host().into_existing_engine()?;
    let tty = io::stdin().is_terminal() && io::stdout().is_terminal();
    let env = env::var("TERM").map(|name| format!("TERM={name}")).into_iter().collect();
    let mut command =
        engine.exec(record, &ExecOptions { args: words, env, tty, ..ExecOptions::default() })?;
    let cannot_execute =
        |source| ContainerError::from(PathError::new("execute", &record.runtime.program, source));
    if tty {
        return Err(cannot_execute(command.stdin(Stdio::inherit()).exec()).into());
    }
    // A program in the container must not get the caller's terminal: it could keep and read it.
    let stdin = if io::stdin().is_terminal() { Stdio::null() } else { Stdio::inherit() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(cannot_execute)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| stderr.map(|mut stderr| io::copy(&mut stderr, &mut io::stderr())));
        // On an error, dropping the pipe closes the output of the program, too.
        let _ = stdout.map(|mut stdout| io::copy(&mut stdout, &mut io::stdout()));
    });
    let status = child.wait().map_err(cannot_execute)?;
    Ok(status.into())
}

/// A terminal in raw mode, until this value is dropped.
struct RawTerminal<'a> {
    terminal: BorrowedFd<'a>,
    before: Termios,
}

impl<'a> RawTerminal<'a> {
    /// Puts a terminal into raw mode; returns none if it is not a terminal.
    fn of(terminal: BorrowedFd<'a>) -> io::Result<Option<Self>> {
        let Ok(before) = tcgetattr(terminal) else { return Ok(None) };
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(terminal, OptionalActions::Now, &raw)?;
        Ok(Some(RawTerminal { terminal, before }))
    }
}

impl Drop for RawTerminal<'_> {
    fn drop(&mut self) {
        // Discards the terminal's replies to the container, which the caller's shell would read as input.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}
