//! `step-runner ci`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use clap::Args;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::fs::PathContext as _;
use step_runner::document::{StepFile, parse_steps};
use step_runner::jobs::{LOG_LEVEL, log_level};
use step_runner::log::Masking;

use crate::error::StepRunnerError;
use crate::local_job::{self, JobSpec, ReportArgs};
use crate::{environment, resolver};

/// Run the steps in the variable STEPS of a CI job
#[derive(Args, Debug)]
#[command(after_help = "\
STEPS is a YAML list of steps. They run in CI_PROJECT_DIR. The variables CI_*, GITLAB_* and DOCKER_* are \
job variables, vars.NAME in expressions; of the others, steps inherit only proxy and login variables, such as \
HTTPS_PROXY, PATH, USER and LANG.

Example:
  STEPS='[{name: hello, script: echo hello}]' step-runner ci")]
pub struct CiArgs {
    #[command(flatten)]
    report: ReportArgs,
}

/// Prefixes of environment variables that become job variables.
const VARS: [&str; 3] = ["CI_", "GITLAB_", "DOCKER_"];

/// Environment variables that steps inherit.
const ENV: [&str; 17] = [
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "NO_PROXY",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

pub fn run(args: &CiArgs) -> Result<CliExit, StepRunnerError> {
    let text = env::var("STEPS").map_err(|_| StepRunnerError::NoSteps)?;
    let steps = parse_steps(&text).map_err(|error| StepRunnerError::Steps(Box::new(error)))?;
    let work_dir = match env::var_os("CI_PROJECT_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from("."),
    };
    let work_dir = fs::canonicalize(&work_dir).with_path("resolve", &work_dir)?;
    let all = environment::variables();
    let level = log_level(&[&all]).map_err(StepRunnerError::LogLevel)?;
    let (mut vars, mut env) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in all {
        if VARS.iter().any(|prefix| name.starts_with(prefix)) {
            vars.insert(name, value);
        } else if ENV.contains(&name.as_str()) {
            env.insert(name, value);
        }
    }
    env.insert(LOG_LEVEL.to_owned(), level.to_owned());
    let steps = StepFile::of_steps(steps);
    let masking = masking(&vars);
    let failed = "failed to run steps: ";
    let job = JobSpec { steps, dir: work_dir.clone(), work_dir, env, vars, masking, failed };
    local_job::run_job(job, &resolver::open()?, &args.report)
}

/// Returns a masking of GitLab's credentials: tokens, passwords and JWTs among the job variables.
fn masking(vars: &BTreeMap<String, String>) -> Masking {
    let is_secret =
        |name: &str| ["TOKEN", "PASSWORD", "_JWT"].iter().any(|end| name.ends_with(end));
    let secrets = vars.iter().filter(|(name, value)| is_secret(name) && value.len() >= 8);
    let mut masking = Masking::default();
    secrets.for_each(|(_, value)| masking.add_secret(value));
    masking
}
