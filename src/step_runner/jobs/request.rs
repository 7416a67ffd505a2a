//! From a request to a job that can be started.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::super::document::StepFile;
use super::super::engine::{Cancel, Job};
use super::super::log::{Log, Masking};
use super::super::resolve::Resolver;
use super::super::wire::proto;
use super::entry::{Entry, Work};
use super::error::RunError;
use super::event::Watcher;
use super::log_level::{VARIABLE, log_level};
use super::results::Results;
use super::state::State;
use super::variables::{self, Variables};
use super::work_dir::Made;
use crate::sys::fs::PathContext as _;

/// What all jobs of a server have in common.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where jobs work that do not say where, and what relative directories are relative to.
    pub work_dir: PathBuf,
    /// The server's environment, which that of each job starts from.
    pub env: BTreeMap<String, String>,
    /// How step files are found.
    pub resolver: Resolver,
    /// The time between `SIGTERM` and `SIGKILL` for a command that is to end.
    pub grace: Duration,
    /// The time that steps have after a cancellation whose condition says that they still run.
    pub cleanup: Duration,
    /// How long a job may run.
    pub max_runtime: Duration,
    /// How long after its end a job is forgotten that nobody closes.
    pub stale_after: Duration,
    /// How many jobs there may be, those included that have ended and are not closed.
    pub max_jobs: usize,
    /// How much of a job's log is kept.
    pub max_log_bytes: u64,
}

/// Makes all that a job needs. If it fails nothing is left.
pub(super) fn prepare(
    settings: &Settings,
    state: &State,
    request: proto::RunRequest,
    treatment: Variables,
    watcher: &Watcher,
) -> Result<(Arc<Entry>, Work), RunError> {
    let proto::RunRequest { id, work_dir, env: request_env, masking, job, steps } = request;
    let ci = job.unwrap_or_default();
    let steps =
        StepFile::parse("steps", &steps).map_err(|error| RunError::Steps { steps, error })?;
    variables::check(&ci.variables, &request_env, treatment)?;

    let asked = if ci.build_dir.is_empty() { &work_dir } else { &ci.build_dir };
    let work_dir = settings.work_dir.join(asked);
    let made = Made::make(&work_dir).map_err(|(at, error)| RunError::WorkDir {
        path: work_dir.clone(),
        at,
        error,
    })?;

    let dir = state.make(&id).map_err(RunError::Files)?;
    let mut vars =
        variables::write_files(&ci.variables, &dir.variables()).map_err(RunError::Files)?;
    let mut env = settings.env.clone();
    if treatment == Variables::Environment {
        let mut known = env.clone();
        known.extend(request_env.clone());
        vars = variables::expand(&ci.variables, vars, &known)?;
    }
    let level = log_level(&[&vars, &request_env, &settings.env]).map_err(RunError::LogLevel)?;

    let mut masking = masking_of(masking, &ci);
    if treatment == Variables::Environment {
        for variable in ci.variables.iter().filter(|variable| variable.masked) {
            masking.add_secret(&vars[&variable.key]);
        }
        env.extend(vars.clone());
    }
    env.insert(VARIABLE.to_owned(), level.to_owned());
    env.extend(request_env);

    let job = Job {
        steps,
        work_dir,
        env,
        vars,
        inputs: BTreeMap::new(),
        scratch: dir.scratch(),
        grace: settings.grace,
        cleanup: settings.cleanup,
        timeout: Some(settings.max_runtime),
    };
    job.check()?;

    let path = dir.log();
    let log = Log::create(&path, &masking, settings.max_log_bytes).map_err(RunError::Log)?;
    let path = dir.results();
    let results = Results::create(&path).at("make", &path).map_err(RunError::Files)?;
    let cancel = Cancel::new().map_err(RunError::Start)?;
    let work =
        Work { job, resolver: settings.resolver.clone(), log, watcher: watcher.clone(), masking };
    let entry = Entry::new(&id, dir, &work, results, cancel);
    made.keep();
    Ok((Arc::new(entry), work))
}

fn masking_of(masking: Option<proto::Masking>, ci: &proto::Job) -> Masking {
    let masking = masking.unwrap_or_default();
    let mut all = Masking {
        phrases: masking.phrases,
        token_prefixes: masking.token_prefixes,
        ..Masking::default()
    };
    all.token_prefixes.extend(ci.token_prefixes.iter().cloned());
    for secret in variables::secrets(&ci.variables) {
        all.add_secret(secret);
    }
    all
}
