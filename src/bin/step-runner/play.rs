//! Runs a job in this process, for `run` and `ci`.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use oci_hooks::step_runner::document::StepFile;
use oci_hooks::step_runner::engine::{Cancel, Job, JobOutcome, Reason};
use oci_hooks::step_runner::jobs;
use oci_hooks::step_runner::log::{Masking, Plain};
use oci_hooks::step_runner::redact::{Redactor, Shared};
use oci_hooks::step_runner::resolve::Resolver;
use oci_hooks::step_runner::trace;
use oci_hooks::step_runner::wire::proto::StepResult;
use oci_hooks::step_runner::wire::proto::step_result::Status;
use oci_hooks::sys::fs::{PathContext as _, create_without_waiting, random_u64};
use oci_hooks::sys::removal::remove_tree;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Exit;
use crate::error::Error;
use crate::first;
use crate::tree;

/// Options of `run` and `ci`: results, exit code and time limits.
#[derive(Args, Debug)]
pub struct Report {
    /// Output format of results: outputs and a tree of the steps on stderr, or JSON on stdout
    ///
    /// With json, the output of the steps goes to stderr.
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    format: Format,
    /// Write the results of the steps to step-results.json, or .txtpb for prototext
    #[arg(long, alias = "write-steps-results")]
    write_step_results: bool,
    /// Write the results of the steps to FILE
    #[arg(long, value_name = "FILE", alias = "step-results-file")]
    results: Option<PathBuf>,
    /// Format of the file of results
    #[arg(long, value_name = "FORMAT", alias = "step-results-format", default_value = "json")]
    results_format: ResultsFormat,
    /// Show secrets, and all variables of the environment, in results
    #[arg(long)]
    show_secrets: bool,
    /// Exit with the code of the command that failed instead of 1
    #[arg(long)]
    pass_exit_code: bool,
    /// Stop the job after this time, for example 90s, 10m or 1h
    #[arg(long, value_name = "TIME", value_parser = crate::quantity::time)]
    timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL when the job is stopped
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = crate::quantity::time)]
    grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable outputs on stderr; if that is a terminal, with a tree of the steps
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
    /// Base of relative references.
    pub dir: PathBuf,
    pub env: BTreeMap<String, String>,
    pub vars: BTreeMap<String, String>,
    /// Variables of `env` that are not repeated in results.
    pub inherited: BTreeMap<String, String>,
    pub masking: Masking,
    /// Prefix of the error message if the job fails.
    pub failed: &'static str,
}

/// Time limit of cleanup steps (`if: ${{ always() }}`) after a cancellation.
const CLEANUP: Duration = Duration::from_secs(30);

/// The variable with the log level of steps.
pub const LOG_LEVEL: &str = "CI_STEPS_LOG_LEVEL";

/// Returns the log level of steps: debug, info, warn or error.
pub fn log_level(
    vars: &BTreeMap<String, String>,
    env: &BTreeMap<String, String>,
) -> Result<String, Error> {
    jobs::log_level(&[vars, env]).map(str::to_owned).map_err(Error::LogLevel)
}

/// Runs a job, and prints its output unbuffered.
pub fn play(spec: JobSpec, resolver: &Resolver, report: &Report) -> Result<Exit, Error> {
    first::adopt_orphans();
    let scratch = Scratch::new()?;
    let is_json = report.format == Format::Json;
    let out: Box<dyn io::Write + Send> =
        if is_json { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    let mut output = Plain::new(out, Box::new(io::stderr()), &spec.masking)?;
    let redactor = Redactor::new(spec.masking, spec.inherited);
    let job = Job {
        steps: spec.steps,
        work_dir: spec.work_dir,
        dir: spec.dir,
        env: spec.env,
        vars: spec.vars,
        inputs: BTreeMap::new(),
        scratch: scratch.0.clone(),
        grace: report.grace,
        cleanup: CLEANUP,
        timeout: report.timeout,
    };
    job.check()?;
    let cancel = Cancel::new().map_err(Error::Signals)?;
    let signals = listen(&cancel)?;
    let mut shared = Shared { output: &mut output, redactor: &redactor };
    let mut outcome = job.run(resolver, &mut shared, &cancel, &mut |_| {});
    signals.close();
    output.close().map_err(Error::Print)?;
    outcome.message = jobs::masked_message(&outcome.message, &redactor);
    if !report.show_secrets {
        outcome.result = redactor.result(&outcome.result);
    }
    report_outcome(&outcome, report, spec.failed)?;
    Ok(match outcome.status {
        Status::Success => Exit::Done,
        _ if report.pass_exit_code => Exit::Code(u8::try_from(outcome.exit_code).unwrap_or(1)),
        _ => Exit::Failed,
    })
}

/// Stops the job at the first signal, and kills it at the second.
fn listen(cancel: &Cancel) -> Result<signal_hook::iterator::Handle, Error> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(Error::Signals)?;
    let handle = signals.handle();
    let cancel = cancel.clone();
    thread::spawn(move || {
        for _ in &mut signals {
            cancel.cancel(Reason::Asked);
        }
    });
    Ok(handle)
}

fn report_outcome(outcome: &JobOutcome, report: &Report, failed: &str) -> Result<(), Error> {
    let debug = std::env::var("CI_STEPS_DEBUG").is_ok_and(|value| value == "true");
    let file = match &report.results {
        Some(path) => Some(path.as_path()),
        None => (report.write_step_results || debug).then(|| report.results_format.default_file()),
    };
    if let Some(path) = file {
        let write = || -> io::Result<()> {
            // A step may have made it.
            let mut file = create_without_waiting(path, 0o640)?;
            file.write_all(report.results_format.encode(&outcome.result).as_bytes())
        };
        write().at("write", path)?;
    }
    if report.format == Format::Json {
        let json = ResultsFormat::Json.encode(&outcome.result);
        writeln!(io::stdout(), "{json}").map_err(Error::Print)?;
    } else {
        let mut stderr = anstream::stderr();
        let shown = match io::stderr().is_terminal() {
            true => write!(stderr, "{}", tree::Tree(&outcome.result)),
            false => write!(stderr, "{}", tree::Outputs(&outcome.result)),
        };
        shown.map_err(Error::Print)?;
    }
    if outcome.status != Status::Success {
        crate::report::error(&format!("{failed}{}", outcome.message));
    }
    Ok(())
}

/// A private temporary directory, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Error> {
        // Random, so that other users cannot create it first.
        let name = format!("step-runner-job-{:016x}", random_u64());
        let path = std::env::temp_dir().join(name);
        // An existing directory may belong to another user.
        DirBuilder::new().mode(0o700).create(&path).at("make", &path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed stays in the temporary directory.
        let _ = remove_tree(&self.0);
    }
}
