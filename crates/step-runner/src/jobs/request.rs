//! Preparing a job from a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::document::StepFile;
use super::super::engine::{CancelHandle, StepJob};
use super::super::log::{Masking, StepLog};
use super::super::redact::Redactor;
use super::super::wire::proto;
use super::entry::{JobEntry, JobResources};
use super::event::{EventWatcher, RunError};
use super::results::ResultStore;
use super::settings::{LOG_LEVEL, ServerSettings, TimeLimit, log_format, log_level};
use super::state::{CreatedDirs, StateDir};
use super::variables::{self, VariableMode};

/// Time limit for creating a working directory, which takes long only on a mount that does not respond.
const WORK_DIR_LIMIT: Duration = Duration::from_secs(30);

/// Creates the directory, log and other resources of a job from a request. On error, all are
/// removed.
pub fn prepare(
    settings: &ServerSettings,
    state: &StateDir,
    request: proto::RunRequest,
    treatment: VariableMode,
    watcher: &EventWatcher,
) -> Result<(Arc<JobEntry>, JobResources), RunError> {
    let proto::RunRequest { id, work_dir, env: request_env, masking, job, steps, timeout } =
        request;
    let ci = job.unwrap_or_default();
    let mut masking = masking_of(masking, &ci);
    let steps = StepFile::parse("steps", &steps).map_err(|error| {
        // The error quotes the steps, which may contain expanded variables.
        let steps = Redactor::new(&masking, BTreeMap::new()).text(&steps);
        RunError::Steps { steps, error }
    })?;
    variables::check(&ci.variables, &request_env, treatment)?;

    let asked = if ci.build_dir.is_empty() { &work_dir } else { &ci.build_dir };
    let work_dir = settings.work_dir.join(asked);
    let created = CreatedDirs::make_within(&work_dir, WORK_DIR_LIMIT)
        .map_err(|(at, error)| RunError::WorkDir { path: work_dir.clone(), at, error })?;

    let dir = state.make(&id).map_err(RunError::Files)?;
    let mut vars =
        variables::write_files(&ci.variables, &dir.variables()).map_err(RunError::Files)?;
    let mut env = settings.env.clone();
    if treatment == VariableMode::Environment {
        let mut known = env.clone();
        known.extend(request_env.clone());
        vars = variables::expand(&ci.variables, vars, &known)?;
    }
    let format = match log_format(&[&vars, &request_env]).map_err(RunError::LogFormat)? {
        Some(format) => Some(format),
        None if settings.log_format.is_some() => settings.log_format,
        None => log_format(&[&settings.env]).map_err(RunError::LogFormat)?,
    };
    let level = log_level(&[&vars, &request_env, &settings.env]).map_err(RunError::LogLevel)?;

    if treatment == VariableMode::Environment {
        for variable in ci.variables.iter().filter(|variable| variable.masked) {
            masking.add_secret(&vars[&variable.key]);
        }
        env.extend(vars.clone());
    }
    env.insert(LOG_LEVEL.to_owned(), level.to_owned());
    env.extend(request_env);

    let limit = TimeLimit::of(settings.max_runtime, settings.client_timeout, timeout);
    let job = StepJob {
        steps,
        dir: work_dir.clone(),
        work_dir,
        env,
        vars,
        scratch: dir.scratch(),
        grace: settings.grace,
        cleanup: settings.cleanup,
        timeout: Some(limit.duration),
    };
    job.check()?;

    let path = dir.log();
    let log = StepLog::create(&path, &masking, settings.max_log_bytes).map_err(RunError::Log)?;
    let log = log.in_format(format.unwrap_or_default());
    let results = ResultStore::create(&dir.results()).map_err(RunError::Files)?;
    let cancel = CancelHandle::new().map_err(RunError::Start)?;
    let work = JobResources {
        job,
        resolver: settings.resolver.clone(),
        redactor: Redactor::with(Ok(log.masker()), settings.env.clone()),
        log,
        watcher: watcher.clone(),
        cancel,
        show_secrets: settings.show_secrets,
        limit,
    };
    let entry = JobEntry::new(&id, dir, &work, results);
    created.keep();
    Ok((Arc::new(entry), work))
}

/// The feature flag by which GitLab's runner masks all kinds of GitLab tokens, on by default.
const MASK_ALL_TOKENS: &str = "FF_MASK_ALL_DEFAULT_TOKENS";

/// Returns whether a feature flag is turned off. The last variable of a name counts; values are those of
/// Go's `strconv.ParseBool`.
fn is_off(variables: &[proto::Variable], flag: &str) -> bool {
    let set = variables.iter().rev().find(|variable| variable.key == flag);
    set.is_some_and(|set| matches!(&*set.value, "0" | "f" | "F" | "false" | "FALSE" | "False"))
}

fn masking_of(masking: Option<proto::Masking>, ci: &proto::Job) -> Masking {
    let masking = masking.unwrap_or_default();
    let mut all = Masking {
        phrases: masking.phrases,
        token_prefixes: masking.token_prefixes,
        only_personal_tokens: is_off(&ci.variables, MASK_ALL_TOKENS),
        ..Masking::default()
    };
    all.token_prefixes.extend(ci.token_prefixes.iter().cloned());
    for secret in variables::secrets(&ci.variables) {
        all.add_secret(secret);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_can_request_less_masking_of_tokens() {
        let job = |values: &[&str]| {
            let flag = |value: &&str| proto::Variable {
                key: MASK_ALL_TOKENS.to_owned(),
                value: (*value).to_owned(),
                ..proto::Variable::default()
            };
            proto::Job { variables: values.iter().map(flag).collect(), ..proto::Job::default() }
        };
        for (values, less) in [
            (&[][..], false),
            (&["false"], true),
            (&["0"], true),
            (&["true"], false),
            (&["nonsense"], false),
            (&["true", "False"], true),
            (&["false", "1"], false),
        ] {
            let masking = masking_of(None, &job(values));
            assert_eq!(masking.only_personal_tokens, less, "{values:?}");
        }
    }
}
