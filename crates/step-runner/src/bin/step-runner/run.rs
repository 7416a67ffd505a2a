//! `step-runner run`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::{PathContext as _, read_bounded};
use step_runner::document::{MAX_BYTES, StepFile, StepSpec};
use step_runner::jobs::{LOG_LEVEL, log_level};
use step_runner::log::Masking;
use step_runner::resolve::{Interrupt, ReferenceContext};
use step_runner::trace::definition_from_text;

use crate::error::StepRunnerError;
use crate::local_job::{self, JobSpec, ReportArgs};
use crate::step_args::{SOURCE, StepArgs};
use crate::{environment, resolver};

/// Run a step locally
#[derive(Args, Debug)]
#[command(group = ArgGroup::new(SOURCE).required(true), after_help = "\
Examples:
  step-runner run ./build --input target=release     Step file ./build/step.yml
  step-runner run gitlab.com/group/project@v1        Directory steps/ of a git repository
  step-runner run registry.example.com/steps/lint:1  Container image
  step-runner run . --format json | jq .status       Machine-readable result

Exit status is 0 if the step succeeded and 1 if it failed; with --pass-exit-code that of the command \
that failed.")]
pub struct RunArgs {
    #[command(flatten)]
    step: StepArgs,
    /// File with a step definition in the text format of protocol buffers
    #[arg(
        long,
        value_name = "FILE",
        group = SOURCE,
        conflicts_with_all = ["input", "inputs", "env"]
    )]
    text_proto_step_file: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
}

/// Prefixes of job variables, which steps do not inherit from the environment: `vars` in
/// expressions contains those of `--var`.
const PREFIXES: [&str; 4] = ["CI_", "GITLAB_", "FF_", "DOCKER_ENV_"];

pub fn run(args: &RunArgs) -> Result<CliExit, StepRunnerError> {
    let work_dir = args.step.work_dir()?;
    let vars = args.step.vars()?;
    let mut env = environment::variables();
    let level = log_level(&[&vars, &env]).map_err(StepRunnerError::LogLevel)?;
    env.retain(|name, _| !PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    env.insert(LOG_LEVEL.to_owned(), level.to_owned());
    let resolver = resolver::open()?;
    let (steps, dir) = match &args.text_proto_step_file {
        Some(path) => text_definition(path)?,
        None => {
            let interrupt = Interrupt::new().map_err(StepRunnerError::Signals)?;
            // Before the job begins, a signal ends the program.
            let caller = ReferenceContext {
                dir: &work_dir,
                tree: None,
                vars: &vars,
                env: &env,
                interrupt: &interrupt,
            };
            (StepFile::of_steps(vec![args.step.call(&resolver, &caller)?]), work_dir.clone())
        }
    };
    let masking = Masking::default();
    let job = JobSpec { steps, work_dir, dir, env, vars, masking, failed: "" };
    local_job::run_job(job, &resolver, &args.report)
}

/// Reads a step definition in text format, and returns it with the base directory of its relative references.
fn text_definition(path: &Path) -> Result<(StepFile, PathBuf), StepRunnerError> {
    let bytes = read_bounded(path, MAX_BYTES).map_err(StepRunnerError::Read)?;
    let text = String::from_utf8_lossy(&bytes);
    let definition = definition_from_text(&text)
        .map_err(|source| StepRunnerError::Definition { path: path.to_owned(), source })?;
    let path = fs::canonicalize(path).with_path("resolve", path)?;
    let dir = path.parent().expect("a file has a directory").to_owned();
    Ok((StepFile { spec: StepSpec::default(), definition }, dir))
}
