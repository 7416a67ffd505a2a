//! `step-runner ci`.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use oci_hooks::step_runner::document::{Action, Definition, Run, Spec, StepFile, parse_steps};
use oci_hooks::step_runner::log::Masking;
use oci_hooks::sys::fs::PathContext as _;

use crate::error::Error;
use crate::play::{self, JobSpec, LOG_LEVEL, Report};
use crate::{Exit, environment, resolver};

/// Run the steps in the variable STEPS of a CI job
#[derive(Args, Debug)]
#[command(after_help = "\
STEPS is a YAML list of steps. They run in CI_PROJECT_DIR. The variables CI_*, GITLAB_* and DOCKER_* are \
job variables, vars.NAME in expressions; steps inherit only login variables such as PATH, USER and LANG.

Example:
  STEPS='[{name: hello, script: echo hello}]' step-runner ci")]
pub struct CiArgs {
    #[command(flatten)]
    report: Report,
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

pub fn run(args: &CiArgs) -> Result<Exit, Error> {
    let text = env::var("STEPS").map_err(|_| Error::NoSteps)?;
    let steps = parse_steps(&text).map_err(|error| Error::Steps(Box::new(error)))?;
    let work_dir = match env::var_os("CI_PROJECT_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from("."),
    };
    let work_dir = fs::canonicalize(&work_dir).at("resolve", &work_dir)?;
    let all = environment::variables();
    let level = play::log_level(&BTreeMap::new(), &all)?;
    let (mut vars, mut env) = (BTreeMap::new(), BTreeMap::new());
    for (name, value) in all {
        if VARS.iter().any(|prefix| name.starts_with(prefix)) {
            vars.insert(name, value);
        } else if ENV.contains(&name.as_str()) {
            env.insert(name, value);
        }
    }
    env.insert(LOG_LEVEL.to_owned(), level);
    let run = Run { steps, outputs: BTreeMap::new(), delegate: None };
    let definition = Definition { env: BTreeMap::new(), action: Action::Run(run) };
    let steps = StepFile { spec: Spec::default(), definition };
    let masking = masking(&vars);
    let inherited = env.clone();
    let failed = "failed to run steps: ";
    let job =
        JobSpec { steps, dir: work_dir.clone(), work_dir, env, vars, inherited, masking, failed };
    play::play(job, &resolver::open()?, &args.report)
}

/// Returns the masking of GitLab's credentials: tokens, passwords and JWTs among the job variables.
fn masking(vars: &BTreeMap<String, String>) -> Masking {
    let is_secret =
        |name: &str| ["TOKEN", "PASSWORD", "_JWT"].iter().any(|end| name.ends_with(end));
    let secrets = vars.iter().filter(|(name, value)| is_secret(name) && value.len() >= 8);
    let mut masking = Masking::default();
    secrets.for_each(|(_, value)| masking.add_secret(value));
    masking
}
