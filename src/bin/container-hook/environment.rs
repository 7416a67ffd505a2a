//! The runner and its job, as environment variables describe them.

pub mod pod;

use std::env;
use std::ffi::{CStr, OsString};
use std::iter;
use std::path::{Path, PathBuf};

use oci_hooks::container_hook::service_names::{diag, directory_of};
use oci_hooks::container_hook::{JOB_VARIABLES, Runner, RunnerDefaults, RunnerFiles};
use oci_hooks::hooks::trust::{self, TrustError, TrustOptions};
use oci_hooks::program::host::PROXY_VARIABLES;
use oci_hooks::sys::fs::PathError;
use oci_hooks::sys::host_file::HostFile;
use oci_hooks::sys::identity::Identity;
use oci_hooks::sys::privilege::Privilege;
use oci_hooks::sys::userns::PrivateIds;

use crate::settings::Settings;

/// Variables of the runner that the hook reads, besides those that describe the job.
#[cfg(test)]
pub const RUNNER_VARIABLES: [&str; 6] = [
    "RUNNER_NAME",
    "RUNNER_TEMP",
    "GITHUB_WORKSPACE",
    WORKFLOW_VARIABLE,
    "RUNNER_DEBUG",
    TEMPLATE_VARIABLE,
];

/// The variable that names the workflow's file.
const WORKFLOW_VARIABLE: &str = "GITHUB_WORKFLOW_REF";

/// The variable that names the pod template (ADR 0134).
pub const TEMPLATE_VARIABLE: &str = "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE";

/// The runner's program that runs a job; the kernel knows it by this name.
pub const WORKER: &CStr = c"Runner.Worker";

/// The number of ancestors among which the worker is searched: a shell and processes of this program are between.
const MAX_ANCESTORS: usize = 12;

/// The environment does not describe a runner.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error(
        "the environment has no {name}: only GitHub's runner calls container-hook without a command"
    )]
    Missing { name: &'static str },
    #[error(
        "the environment has no ACTIONS_RUNNER_POD_NAME: it names the runner's pod, which owns those of its \
         jobs"
    )]
    NoPod,
    #[error("{name} must be an absolute path without `..`")]
    NotAbsolute { name: &'static str },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("the pod template {} cannot be used", path.display())]
    Template { path: PathBuf, source: TrustError },
}

/// Returns the variables that say how to reach registries, for programs that fetch by themselves.
pub fn proxies() -> Vec<(String, String)> {
    let set = PROXY_VARIABLES.iter().filter_map(|name| Some((*name, env::var(name).ok()?)));
    set.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns whether the runner wants debug messages.
pub fn wants_debug() -> bool {
    env::var_os("RUNNER_DEBUG").is_some_and(|value| value == "1")
}

/// The runner's worker, which calls this program. It is looked up before a holder's PID namespace is entered,
/// from where it is invisible.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub worker: Option<Identity>,
    /// The directory of the runner that the worker is a program of.
    directory: Option<PathBuf>,
}

/// Finds the worker that calls this program.
pub fn seen() -> Seen {
    let worker = worker();
    Seen { worker, directory: worker.and_then(|worker| directory_of(worker.pid)) }
}

/// Returns the runner that the environment of this process describes.
pub fn runner(settings: &Settings, seen: &Seen) -> Result<Runner, EnvironmentError> {
    let (temp, workspace) = (directory("RUNNER_TEMP")?, directory("GITHUB_WORKSPACE")?);
    let work = temp.parent().unwrap_or(Path::new("/"));
    let files = RunnerFiles::new(work)?;
    // A job may have put something else in the place of `temp`: the job is cleaned up all the same.
    let found = files.open(&temp).or_else(|_| files.open(work))?;
    // In a user namespace the directory belongs to the runner by the map.
    let user = settings.store.place.privilege.only_runner().unwrap_or_else(|| user_of(found, work));
    let directory = seen.directory.as_deref();
    let diag = settings.network.names_from_runner_log.then(|| diag(&files, work, directory));
    let said = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let job = JOB_VARIABLES.iter().filter_map(|(name, _)| Some(((*name).to_owned(), said(name)?)));
    Ok(Runner {
        name: name()?,
        temp,
        workspace,
        files,
        user,
        // Numbers of processes are those of the host.
        worker: seen.worker.filter(|_| settings.store.place.privilege == Privilege::Root),
        diag,
        workflow: said(WORKFLOW_VARIABLE),
        defaults: RunnerDefaults::default(),
        job: job.collect(),
    })
}

/// Returns the name of the runner; in a pod that of the pod will do.
pub fn name() -> Result<String, EnvironmentError> {
    let name = required("RUNNER_NAME").map(|name| name.to_string_lossy().into_owned());
    name.or_else(|error| pod::variable(pod::NAME).ok_or(error))
}

/// Returns the owner of a runner's directory. If a job has given the directory to one of its private ids, returns
/// the owner of the closest directory above it with another owner.
fn user_of(found: HostFile, work: &Path) -> (u32, u32) {
    let above = work.ancestors().filter_map(|dir| HostFile::open_trusted(dir).ok());
    let mut owners = iter::once(found).chain(above).map(|dir| dir.owner());
    let is_private = |id: &u32| PrivateIds::ALL.contains(id);
    owners.find(|(uid, gid)| !is_private(uid) && !is_private(gid)).unwrap_or_default()
}

/// Returns the runner's directory for temporary files, where its scripts are, if the environment says so.
pub fn temp() -> Option<PathBuf> {
    directory("RUNNER_TEMP").ok()
}

/// Returns what tells the containers of the runner that the environment describes from those of others, if it
/// describes one.
pub fn owner() -> Option<String> {
    let (name, temp) = (name().ok()?, directory("RUNNER_TEMP").ok()?);
    Some(Runner::owner_of(&name, &temp))
}

/// Returns the pod template: that of the settings, else the one that the environment names.
///
/// It says what containers may do to the host, so only root and the runner's user may write it.
pub fn template(of_settings: Option<PathBuf>) -> Result<Option<PathBuf>, EnvironmentError> {
    let named = || env::var_os(TEMPLATE_VARIABLE).filter(|path| !path.is_empty());
    let Some(path) = of_settings.or_else(|| named().map(PathBuf::from)) else { return Ok(None) };
    if path.is_relative() {
        return Err(EnvironmentError::NotAbsolute { name: TEMPLATE_VARIABLE });
    }
    trust::check_path(&path, &TrustOptions::of_process_or_pod())
        .map_err(|source| EnvironmentError::Template { path: path.clone(), source })?;
    Ok(Some(path))
}

fn required(name: &'static str) -> Result<OsString, EnvironmentError> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.ok_or(EnvironmentError::Missing { name })
}

fn directory(name: &'static str) -> Result<PathBuf, EnvironmentError> {
    let path = PathBuf::from(required(name)?);
    let has_parent = path.components().any(|part| part == std::path::Component::ParentDir);
    if path.is_relative() || has_parent {
        return Err(EnvironmentError::NotAbsolute { name });
    }
    // Without a slash at the end and `.` in between.
    Ok(path.components().collect())
}

fn worker() -> Option<Identity> {
    let this = Identity::of(std::process::id())?;
    let ancestors = iter::successors(Some(this), Identity::parent);
    ancestors
        .take(MAX_ANCESTORS)
        .find(|process| process.name().is_some_and(|name| name.as_bytes() == WORKER.to_bytes()))
}
