//! Runs a job in this process, for `run` and `ci`.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use oci_hooks_cli::context::OutputError;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::{PathContext as _, create_without_waiting, random_u64};
use oci_hooks_host::removal::remove_tree;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use step_runner::document::StepFile;
use step_runner::engine::{CancelHandle, CancelReason, JobOutcome, StepJob};
use step_runner::jobs;
use step_runner::log::{Masking, PlainOutput};
use step_runner::redact::{RedactedOutput, Redactor};
use step_runner::resolve::Resolver;
use step_runner::trace;
use step_runner::wire::proto::StepResult;
use step_runner::wire::proto::step_result::Status;

use crate::error::StepRunnerError;
use crate::tree;

/// Options of `run` and `ci`: results, exit code and time limits.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Output format of results: outputs and a tree of the steps on stderr, or JSON on stdout
    ///
    /// With json, the output of the steps goes to stderr.
    #[arg(long, value_enum, default_value_t = SummaryFormat::Text, value_name = "FORMAT")]
    format: SummaryFormat,
    /// Write the results of the steps to step-results.json, or step-results.txtpb for prototext
    #[arg(long, alias = "write-steps-results")]
    write_step_results: bool,
    /// Write the results of the steps to FILE
    #[arg(long, value_name = "FILE", alias = "step-results-file")]
    results: Option<PathBuf>,
    /// Format of the results file
    #[arg(long, value_name = "FORMAT", alias = "step-results-format", default_value = "json")]
    results_format: ResultsFormat,
    /// Show secrets and all environment variables in results
    #[arg(long)]
    show_secrets: bool,
    /// Exit with the code of the failed command instead of 1
    #[arg(long)]
    pass_exit_code: bool,
    /// Stop the job after this time, for example 90s, 10m or 1h [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = crate::quantity::time)]
    timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL when the job is stopped
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = crate::quantity::time)]
    grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SummaryFormat {
    /// Human-readable outputs on stderr, with a tree of the steps on a terminal
    Text,
    /// Results as JSON on stdout
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ResultsFormat {
    Json,
    /// Text format of protocol buffers
    Prototext,
}

impl ResultsFormat {
    /// Returns the file name used by `--write-step-results`.
    fn default_file(self) -> &'static Path {
        Path::new(match self {
            ResultsFormat::Json => "step-results.json",
            ResultsFormat::Prototext => "step-results.txtpb",
        })
    }

    fn encode(self, result: &StepResult) -> String {
        match self {
            ResultsFormat::Json => {
                let json = serde_json::to_string_pretty(&trace::to_json(result));
                json.expect("it is made of JSON values")
            }
            ResultsFormat::Prototext => trace::to_text(result),
        }
    }
}

/// A job to run in this process.
pub struct JobSpec {
    pub steps: StepFile,
    pub work_dir: PathBuf,
    /// Base directory of relative step references.
    pub dir: PathBuf,
    /// Environment of the steps, which is omitted from results.
    pub env: BTreeMap<String, String>,
    pub vars: BTreeMap<String, String>,
    pub masking: Masking,
    /// Prefix of the error message of a failed job.
    pub failed: &'static str,
}

/// Time limit of the steps that run after a cancellation, such as those with `if: ${{ always() }}`.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a job, and prints its output unbuffered.
pub fn run_job(
    spec: JobSpec,
    resolver: &Resolver,
    report: &ReportArgs,
) -> Result<CliExit, StepRunnerError> {
    let scratch = JobScratch::new()?;
    let is_json = report.format == SummaryFormat::Json;
    let out: Box<dyn io::Write + Send> =
        if is_json { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    let mut output = PlainOutput::new(out, Box::new(io::stderr()), &spec.masking)?;
    let redactor = Redactor::new(&spec.masking, spec.env.clone());
    let job = StepJob {
        steps: spec.steps,
        work_dir: spec.work_dir,
        dir: spec.dir,
        env: spec.env,
        vars: spec.vars,
        scratch: scratch.0.clone(),
        grace: report.grace,
        cleanup: CLEANUP_TIMEOUT,
        timeout: report.timeout,
    };
    job.check()?;
    let cancel = CancelHandle::new().map_err(StepRunnerError::Signals)?;
    let signals = listen(&cancel)?;
    let mut shared = RedactedOutput { output: &mut output, redactor: &redactor };
    let mut outcome = job.run(resolver, &mut shared, &cancel, &mut |_| {});
    signals.close();
    output.close().map_err(OutputError::from)?;
    outcome.message = jobs::mask_message(&outcome.message, &redactor);
    if !report.show_secrets {
        redactor.redact(&mut outcome.result);
    }
    report_outcome(&outcome, report, spec.failed)?;
    Ok(match outcome.status {
        Status::Success => CliExit::Done,
        _ if report.pass_exit_code => CliExit::Code(u8::try_from(outcome.exit_code).unwrap_or(1)),
        _ => CliExit::Findings,
    })
}

/// Starts a thread that cancels the job at the first SIGINT or SIGTERM, and kills it at a later
/// SIGINT. A second SIGTERM is ignored: timeout(1) sends two.
fn listen(cancel: &CancelHandle) -> Result<signal_hook::iterator::Handle, StepRunnerError> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(StepRunnerError::Signals)?;
    let handle = signals.handle();
    let cancel = cancel.clone();
    thread::spawn(move || {
        for signal in &mut signals {
            match signal {
                SIGINT => cancel.cancel(CancelReason::Requested),
                _ => cancel.stop(CancelReason::Requested),
            }
        }
    });
    Ok(handle)
}

fn report_outcome(
    outcome: &JobOutcome,
    report: &ReportArgs,
    failed: &str,
) -> Result<(), StepRunnerError> {
    let debug = std::env::var("CI_STEPS_DEBUG").is_ok_and(|value| value == "true");
    let file = match &report.results {
        Some(path) => Some(path.as_path()),
        None => (report.write_step_results || debug).then(|| report.results_format.default_file()),
    };
    if let Some(path) = file {
        let write = || -> io::Result<()> {
            // A step may have created a FIFO or a device there.
            let mut file = create_without_waiting(path, 0o640)?;
            file.write_all(report.results_format.encode(&outcome.result).as_bytes())
        };
        write().with_path("write", path)?;
    }
    if report.format == SummaryFormat::Json {
        let json = ResultsFormat::Json.encode(&outcome.result);
        crate::report::print(format!("{json}\n"))?;
    } else {
        let mut stderr = anstream::stderr();
        let shown = match io::stderr().is_terminal() {
            true => write!(stderr, "{}", tree::StepTree(&outcome.result)),
            false => write!(stderr, "{}", tree::OutputList(&outcome.result)),
        };
        shown.map_err(OutputError::from)?;
    }
    if outcome.status != Status::Success {
        crate::report::error(&format!("{failed}{}", outcome.message));
    }
    Ok(())
}

/// A private temporary directory, removed on drop.
struct JobScratch(PathBuf);

impl JobScratch {
    fn new() -> Result<Self, StepRunnerError> {
        // A random name, which other users cannot create first.
        let name = format!("step-runner-job-{:016x}", random_u64());
        let path = std::env::temp_dir().join(name);
        // An existing directory may belong to another user.
        DirBuilder::new().mode(0o700).create(&path).with_path("make", &path)?;
        Ok(JobScratch(path))
    }
}

impl Drop for JobScratch {
    fn drop(&mut self) {
        // Remaining files stay in the temporary directory.
        let _ = remove_tree(&self.0);
    }
}
