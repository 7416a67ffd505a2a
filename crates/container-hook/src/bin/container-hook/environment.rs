//! Reads the runner and its job from environment variables.

pub mod pod;

use std::env;
use std::ffi::{CStr, OsString};
use std::iter;
use std::path::{Path, PathBuf};

use container_hook_job::RunnerFiles;
use container_hook_job::runner::{CallingRunner, JOB_VARIABLES, RunnerDefaults};
use container_hook_job::service_names::{diag, directory_of};
use oci_hooks::hooks::trust::{self, TrustError, TrustOptions};
use oci_hooks_engine_cli::host::PROXY_VARIABLES;
use oci_hooks_files::fs::PathError;
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::userns::PrivateIds;

use crate::settings::HookFileSettings;

/// Variables of the runner that the hook reads, besides those that describe the job.
#[cfg(test)]
pub const RUNNER_VARIABLES: [&str; 7] = [
    "RUNNER_NAME",
    "RUNNER_TEMP",
    "GITHUB_WORKSPACE",
    "RUNNER_DEBUG",
    TEMPLATE_VARIABLE,
    ACTION_CACHE,
    ACTION_LINKS,
];

/// Variable with the path of the pod template (ADR 0134).
pub const TEMPLATE_VARIABLE: &str = "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE";

/// Variable with the directory of cached actions.
const ACTION_CACHE: &str = "ACTIONS_RUNNER_ACTION_ARCHIVE_CACHE";

/// Variable that makes the runner link cached actions instead of copying them.
const ACTION_LINKS: &str = "ACTIONS_RUNNER_SYMLINK_CACHED_ACTIONS";

/// Name of the runner's process that runs a job, as the kernel reports it.
pub const WORKER: &CStr = c"Runner.Worker";

/// Number of ancestors to search for the worker: shells and processes of this program are in between.
const MAX_ANCESTORS: usize = 12;

/// Errors of an environment that does not describe a runner.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error(
        "the environment has no {name}: only GitHub's runner calls container-hook without a command"
    )]
    Missing { name: &'static str },
    #[error(
        "the environment has no ACTIONS_RUNNER_POD_NAME, the name of the runner's pod, which owns the pods of \
         its jobs: set it by the downward API (fieldRef metadata.name)"
    )]
    NoPod,
    #[error("{name} must be an absolute path without `..`")]
    NotAbsolute { name: &'static str },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("the pod template {} cannot be used", path.display())]
    Template { path: PathBuf, source: TrustError },
}

/// Returns the proxy variables that are set, for builds.
pub fn proxies() -> Vec<(String, String)> {
    let set = PROXY_VARIABLES.iter().filter_map(|name| Some((*name, env::var(name).ok()?)));
    set.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns whether the runner wants debug messages.
pub fn wants_debug() -> bool {
    env::var_os("RUNNER_DEBUG").is_some_and(|value| value == "1")
}

/// The runner's worker, an ancestor of this process. It is looked up before entering a pause process's PID
/// namespace, in which it is invisible.
#[derive(Clone, Debug, Default)]
pub struct WorkerInfo {
    pub worker: Option<ProcessIdentity>,
    /// Installation directory of the runner.
    directory: Option<PathBuf>,
}

/// Finds the worker that calls this program.
pub fn find_worker() -> WorkerInfo {
    let worker = worker();
    WorkerInfo { worker, directory: worker.and_then(|worker| directory_of(worker.pid)) }
}

/// Returns the runner of this environment.
pub fn runner(
    settings: &HookFileSettings,
    seen: &WorkerInfo,
) -> Result<CallingRunner, EnvironmentError> {
    let (temp, workspace) = (directory("RUNNER_TEMP")?, directory("GITHUB_WORKSPACE")?);
    let work = temp.parent().unwrap_or(Path::new("/"));
    let mut files = RunnerFiles::new(work)?;
    if links_actions() && env::var_os(ACTION_CACHE).is_some_and(|path| !path.is_empty()) {
        files = files.with_actions(&directory(ACTION_CACHE)?)?;
    }
    // A job may have replaced `temp`: its cleanup has to work all the same.
    let found = files.open(&temp).or_else(|_| files.open(work))?;
    // In the user namespace of a rootless user, the runner's files belong to root.
    let user = settings.store.place.privilege.only_runner().unwrap_or_else(|| user_of(found, work));
    let directory = seen.directory.as_deref();
    let diag = settings.network.names_from_runner_log.then(|| diag(&files, work, directory));
    let said = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let job = JOB_VARIABLES.iter().filter_map(|(name, _)| Some(((*name).to_owned(), said(name)?)));
    Ok(CallingRunner {
        name: name()?,
        temp,
        workspace,
        files,
        user,
        // The worker's host PID has no meaning in the PID namespace of a pause process.
        worker: seen.worker.filter(|_| settings.store.place.privilege == Privilege::Root),
        diag,
        defaults: RunnerDefaults::default(),
        job: job.collect(),
    })
}

/// Returns whether the runner links cached actions, by the values that the runner accepts.
fn links_actions() -> bool {
    let value = env::var(ACTION_LINKS).unwrap_or_default();
    ["1", "true", "$true"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

/// Returns the name of the runner, by default that of its pod.
pub fn name() -> Result<String, EnvironmentError> {
    let name = read_required("RUNNER_NAME").map(|name| name.to_string_lossy().into_owned());
    name.or_else(|error| pod::variable(pod::NAME).ok_or(error))
}

/// Returns the owner of a runner's directory. If a job has changed the owner to one of its private
/// ids ([`PrivateIds`]), returns the owner of the closest parent directory with another owner.
fn user_of(found: HostFile, work: &Path) -> (u32, u32) {
    let above = work.ancestors().filter_map(|dir| HostFile::open_trusted(dir).ok());
    let mut owners = iter::once(found).chain(above).map(|dir| dir.owner());
    let is_private = |id: &u32| PrivateIds::ALL.contains(id);
    owners.find(|(uid, gid)| !is_private(uid) && !is_private(gid)).unwrap_or_default()
}

/// Returns the runner's directory for temporary files and scripts, if the environment names it.
pub fn temp() -> Option<PathBuf> {
    directory("RUNNER_TEMP").ok()
}

/// Returns the owner id in the records of the runner's containers, if the environment describes a runner.
pub fn owner() -> Option<String> {
    let (name, temp) = (name().ok()?, directory("RUNNER_TEMP").ok()?);
    Some(CallingRunner::owner_of(&name, &temp))
}

/// Returns the path of the pod template: that of the settings, else that of the environment.
///
/// A template can grant access to the host, so only root and the runner's user may write it.
pub fn template(of_settings: Option<PathBuf>) -> Result<Option<PathBuf>, EnvironmentError> {
    let of_settings = of_settings.map(|path| ("file under [template] of the settings", path));
    let named = || Some((TEMPLATE_VARIABLE, PathBuf::from(env::var_os(TEMPLATE_VARIABLE)?)));
    let named = || named().filter(|(_, path)| !path.as_os_str().is_empty());
    let Some((name, path)) = of_settings.or_else(named) else { return Ok(None) };
    if path.is_relative() {
        return Err(EnvironmentError::NotAbsolute { name });
    }
    trust::check_path(&path, &TrustOptions::of_process_or_pod())
        .map_err(|source| EnvironmentError::Template { path: path.clone(), source })?;
    Ok(Some(path))
}

fn read_required(name: &'static str) -> Result<OsString, EnvironmentError> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.ok_or(EnvironmentError::Missing { name })
}

fn directory(name: &'static str) -> Result<PathBuf, EnvironmentError> {
    let path = PathBuf::from(read_required(name)?);
    let has_parent = path.components().any(|part| part == std::path::Component::ParentDir);
    if path.is_relative() || has_parent {
        return Err(EnvironmentError::NotAbsolute { name });
    }
    // Normalizes slashes and `.` components.
    Ok(path.components().collect())
}

fn worker() -> Option<ProcessIdentity> {
    let this = ProcessIdentity::of(std::process::id())?;
    let ancestors = iter::successors(Some(this), ProcessIdentity::parent);
    ancestors
        .take(MAX_ANCESTORS)
        .find(|process| process.name().is_some_and(|name| name.as_bytes() == WORKER.to_bytes()))
}
