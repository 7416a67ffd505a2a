//! Runs the job: prepare, one step, cleanup, and the search for leftovers.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCandidates;
use container_hook::JobRootFs;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_engine_cli::settings_file::LoadedSettings;
use oci_hooks_files::fs::{PathError, ReadError};
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::version::ProgramVersion;
use oci_hooks_image::ImageReference;
use rustix::io::Errno;
use serde::Serialize;
use serde_json::{Value, json};

use super::call::CallResult;
use super::calls::RunnerCalls;
use super::job_log::JobLog;
use super::left::JobObjects;
use super::request::{self, ServiceArg};
use super::runner::SimulatedRunner;
use crate::environment::WORKER;
use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::names;
use crate::settings::HookFileSettings;
use crate::signals::PendingSignals;

/// Run a job without GitHub, and check that it leaves nothing behind
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  container-hook try                                  A container with the programs of this machine
  container-hook try -- sh -c 'echo $HOME; exit 3'    Another command; ends with its code, 3
  container-hook try node:22 -- node --version        A container of an image
  container-hook try --service redis:7 redis:7 -- redis-cli -h redis ping
  container-hook try --keep                           Keep the job for inspection

It sends the requests that GitHub's runner would send, and shows the log of the job as GitHub does.

Without IMAGE no registry is asked: the container has /usr, /bin, /sbin and /lib of this machine, \
read-only, and from /etc the files of the loader and CA certificates; of these only files that every \
user may read.

Exit status is that of the command; 1 if the job did not start, or left something behind. \
Images stay in the store.")]
pub struct TryArgs {
    /// Image of the job container; by default the programs of this machine
    #[arg(value_name = "IMAGE", add = ArgValueCandidates::new(names::images))]
    image: Option<ImageReference>,

    /// Start a service that the command reaches as NAME, or by the last part of its image's name (can be repeated)
    #[arg(long = "service", value_name = "IMAGE[=NAME]")]
    services: Vec<ServiceArg>,

    /// Keep the job: print the commands to inspect and to remove it
    #[arg(long)]
    keep: bool,

    /// Command and arguments of the step
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Carry out a request of `try` for a job with the programs of this machine
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct TryRequestArgs {}

/// Errors of a job without GitHub.
#[derive(Debug, thiserror::Error)]
pub enum TryJobError {
    #[error(
        "`try` and `doctor --probe` run jobs on this machine, but jobs of this runner are pods of a cluster: \
         use `container-hook doctor`, or run a workflow"
    )]
    Cluster,
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot catch signals")]
    Signals(#[source] std::io::Error),
    #[error("cannot set the name of this process")]
    Name(#[source] Errno),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the response to prepare_job is malformed")]
    Answer(#[from] serde_json::Error),
}

/// The JSON output.
#[derive(Debug, Default, Serialize)]
struct TryReport {
    /// Image of the job container; `None` if it has the programs of this machine instead.
    image: Option<String>,
    runtime: Option<PathBuf>,
    runtime_version: Option<String>,
    prepare_seconds: Option<f64>,
    step_seconds: Option<f64>,
    cleanup_seconds: Option<f64>,
    exit_code: u8,
    /// Leftovers of the job; `None` if the job is kept.
    left: Option<Vec<String>>,
    kept: Option<PathBuf>,
}

pub fn run(args: &TryArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let loaded = settings_file::load::<HookFileSettings>(context)?;
    match JobBackend::of(&loaded.settings)? {
        JobBackend::Root | JobBackend::User => {}
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => return Err(TryJobError::Cluster.into()),
    }
    let own = become_worker()?;
    let mut signals = PendingSignals::new().map_err(TryJobError::Signals)?;
    let runner = SimulatedRunner::new(&loaded.settings, own, "")?;
    let config = context.config.clone();
    let runtime = loaded.settings.host().runtime().ok().map(|runtime| runtime.program);
    let mut report = TryReport {
        image: args.image.as_ref().map(ImageReference::familiar_name),
        runtime_version: runtime
            .as_deref()
            .filter(|_| context.is_json())
            .and_then(|runtime| ProgramVersion::of(runtime).map(|version| version.text)),
        runtime,
        ..TryReport::default()
    };
    let system = if args.image.is_none() { JobRootFs::Host } else { JobRootFs::Image };
    let log = JobLog::new(context);
    let calls = RunnerCalls { config, signals: &mut signals, signal: None, system, log };
    let mut job = SimulatedJob { args, loaded: &loaded, runner: &runner, calls };
    let played = job.run(&mut report);
    let mut log = job.calls.log;
    if matches!(played, Ok(JobResult::Failed)) {
        log.show("to check this machine: container-hook doctor");
        log.repeat_errors();
    }
    let shown = log.finish();
    played?;
    if context.is_json() {
        context.json(&report)?;
    }
    shown?;
    context.flush()?;
    let is_left = report.left.is_some_and(|left| !left.is_empty());
    Ok(if is_left { CliExit::Findings } else { CliExit::Code(report.exit_code) })
}

/// Gives this process the name of a runner's worker, by which calls find it, and returns its identity. The
/// job ends with this process.
pub fn become_worker() -> Result<ProcessIdentity, TryJobError> {
    rustix::thread::set_name(WORKER).map_err(TryJobError::Name)?;
    let pid = std::process::id();
    Ok(ProcessIdentity::of(pid).unwrap_or(ProcessIdentity { pid, start: 0 }))
}

/// Result of a job, regardless of its command's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobResult {
    /// The step ran.
    Ran,
    /// A signal cancelled the job before its step.
    Cancelled,
    /// The job was not prepared, or not cleaned up.
    Failed,
}

/// The job of `container-hook try`.
struct SimulatedJob<'a> {
    args: &'a TryArgs,
    loaded: &'a LoadedSettings<HookFileSettings>,
    runner: &'a SimulatedRunner,
    calls: RunnerCalls<'a>,
}

impl SimulatedJob<'_> {
    /// Runs the job to its end, or leaves it running with `--keep`.
    fn run(&mut self, report: &mut TryReport) -> Result<JobResult, HookCommandError> {
        let settings = &self.loaded.settings;
        let worked = self.steps(report);
        if self.args.keep && worked.as_ref().is_ok_and(|came| *came == JobResult::Ran) {
            let directory = self.runner.directory.display();
            let config =
                self.calls.config.as_ref().map(|file| format!(" --config {}", file.display()));
            let program = format!("container-hook{}", config.unwrap_or_default());
            let log = &mut self.calls.log;
            log.title("The job is kept");
            log.show(&format!("its containers:       {program} ps"));
            log.show(&format!("what a service wrote: {program} logs NAME"));
            log.show(&format!("the runner's files:   {directory}"));
            log.show(&format!("remove all of it:     {program} prune"));
            report.kept = Some(self.runner.directory.clone());
            return worked;
        }
        let objects = JobObjects::of(settings, &self.runner.owner());
        self.calls.log.title("Stop containers");
        let cleaned = self.calls.request(self.runner, "cleanup_job", &json!({}), &Value::Null);
        let removed = self.runner.remove();
        let ended = cleaned?;
        report.cleanup_seconds = Some(ended.seconds);
        let log = &mut self.calls.log;
        log.time("cleanup", ended.seconds);
        let left = objects?.find_leftovers(settings);
        for line in &left {
            log.error(&format!("leftover of the job: {line}"));
        }
        if left.is_empty() {
            log.show("the job left nothing behind");
        }
        report.left = Some(left);
        removed?;
        let came = worked?;
        if ended.status.success() {
            return Ok(came);
        }
        report.exit_code = code(&ended);
        Ok(JobResult::Failed)
    }

    /// Prepares the job and runs its step.
    fn steps(&mut self, report: &mut TryReport) -> Result<JobResult, HookCommandError> {
        let TryArgs { image, services, command, .. } = self.args;
        self.calls.log.title("Initialize containers");
        if image.is_none() {
            self.calls.log.show("the job container has the programs of this machine, read-only");
        }
        let (ended, state) = self.calls.prepare_job(self.runner, image.as_ref(), services)?;
        let log = &mut self.calls.log;
        report.prepare_seconds = Some(ended.seconds);
        log.time("prepare", ended.seconds);
        report.exit_code = code(&ended);
        if let Some(signal) = ended.signal {
            log.error(CANCELLED);
            report.exit_code = u8::try_from(128 + signal).unwrap_or(1);
            return Ok(JobResult::Cancelled);
        }
        if !ended.status.success() {
            return Ok(JobResult::Failed);
        }
        let (script, title) = request::script(command);
        self.runner.write(&request::script_name(), script.as_bytes())?;
        log.title(&format!("Run {title}"));
        let args = request::step(self.runner);
        let ended = self.calls.request(self.runner, "run_script_step", &args, &state)?;
        let log = &mut self.calls.log;
        log.forget_errors();
        report.step_seconds = Some(ended.seconds);
        report.exit_code = code(&ended);
        if ended.signal.is_some() {
            log.error(CANCELLED);
        } else if report.exit_code != 0 {
            log.error(&format!("Process completed with exit code {}.", report.exit_code));
        }
        log.time("step", ended.seconds);
        Ok(JobResult::Ran)
    }
}

/// The runner's message for cancelled steps.
const CANCELLED: &str = "The operation was canceled.";

/// Returns the exit code of a call.
fn code(ended: &CallResult) -> u8 {
    match CliExit::from(ended.status) {
        CliExit::Done => 0,
        CliExit::Findings => 1,
        CliExit::Code(code) => code,
    }
}

#[test]
fn report_matches_the_manual() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("tests/data/cli/try.json");
    let report = TryReport {
        image: Some("redis:7".to_owned()),
        runtime: Some("/usr/sbin/runc".into()),
        runtime_version: Some("1.3.3".to_owned()),
        prepare_seconds: Some(0.071),
        step_seconds: Some(0.012),
        cleanup_seconds: Some(0.05),
        exit_code: 3,
        left: Some(Vec::new()),
        kept: None,
    };
    let written = serde_json::to_string_pretty(&report).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), written);
}
