//! Restores the runner's directories after a job: gives files of containers to the runner's user, and removes
//! device nodes and set-user-ID permissions.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use container_hook_job::HookError;
use oci_hooks_engine::container::{Engine, read_json_if_there, write_record};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathError;
use oci_hooks_files::quantity::format_count;
use oci_hooks_host::file_user::is_root;
use oci_hooks_host::host_file::{HostFile, HostRoot};
use oci_hooks_host::ownership::{FileOwners, OwnershipReport, WalkProblems, restore_ownership};
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::userns::PrivateIds;

use super::backend::EngineBackend;
use super::job::WritableDirectories;
use super::plan::LaunchPlan;

/// Returns the directories that containers of a job can write to: the work directory, and directories outside of
/// it.
pub fn writable_directories(
    backend: &EngineBackend<'_>,
    plans: &[LaunchPlan<'_>],
) -> WritableDirectories {
    let mut writable =
        WritableDirectories { user: backend.context.runner.user, directories: Vec::new() };
    extend(&mut writable, backend, plans);
    writable
}

/// Adds the directories that more containers can write to; returns whether any was added.
pub fn extend(
    writable: &mut WritableDirectories,
    backend: &EngineBackend<'_>,
    plans: &[LaunchPlan<'_>],
) -> bool {
    let work = backend.context.runner.work();
    let directories: &mut Vec<PathBuf> = &mut writable.directories;
    let before = directories.len();
    for path in plans.iter().flat_map(LaunchPlan::writable_paths) {
        let path = if path.starts_with(work) { work } else { path };
        if !directories.iter().any(|known| path.starts_with(known)) {
            directories.push(path.to_owned());
        }
    }
    directories.len() > before
}

/// File name of the record of writable directories, in the disk directory of a rootless user's job.
const RECORD: &str = "writable.json";

/// Records the writable directories of a rootless user on disk, because the job record is cleared on reboot, unlike the
/// ownership of files. Jobs of root need no record: their ids are not used by others.
pub fn record(engine: &Engine, writable: &WritableDirectories) -> Result<(), HookError> {
    if engine.privilege.only_runner().is_some() {
        write_record(&engine.disk.join(RECORD), writable)?;
    }
    Ok(())
}

/// Returns the writable directories that are recorded on disk, if any.
pub fn read_record(engine: &Engine) -> Option<WritableDirectories> {
    engine.privilege.only_runner()?;
    read_json_if_there(&engine.disk.join(RECORD)).ok().flatten()
}

/// Removes the record after ownership was restored.
pub fn remove_record(engine: &Engine) -> Result<(), HookError> {
    if engine.privilege.only_runner().is_some() {
        remove_tree(&engine.disk.join(RECORD))?;
    }
    Ok(())
}

/// Restores ownership in the writable directories that the runner's requests may name; errors are only logged.
pub fn restore_as_runner(backend: &EngineBackend<'_>, writable: &WritableDirectories) {
    let privilege = backend.engine.privilege;
    for path in &writable.directories {
        let report = match backend.context.runner.files.open(path) {
            Ok(dir) => restore_directory(&dir, path, writable.user, privilege)
                .map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        };
        match report {
            Ok(report) => report_changes(backend, path, &report),
            Err(problem) => backend.context.log.warning(&problem),
        }
    }
}

/// Restores ownership in the directories of a job whose runner has exited.
pub fn restore_as_root(
    writable: &WritableDirectories,
    privilege: Privilege,
) -> Result<(), HookError> {
    for path in &writable.directories {
        // Directories that the runner's user has replaced or removed since are left alone.
        if let Ok(dir) = open(path, writable.user) {
            restore_directory(&dir, path, writable.user, privilege)?;
        }
    }
    Ok(())
}

/// Opens a directory of a user without following symbolic links. A job may have changed its owner to a user of the
/// container; then its parent directory must belong to the user.
fn open(path: &Path, (uid, _): (u32, u32)) -> Result<HostFile, PathError> {
    if is_root(uid) {
        return HostFile::open_trusted(path);
    }
    let above = path.parent().unwrap_or(path);
    let above = HostRoot::open_trusted(Path::new("/"))?
        .subdirectory(above.strip_prefix("/").unwrap_or(above))?;
    let dir = above.open(Path::new(path.file_name().unwrap_or_default()))?;
    let owner = dir.owner().0;
    let is_of_container = is_root(owner) || PrivateIds::ALL.contains(&owner);
    if owner == uid || (is_of_container && above.dir().owner().0 == uid) {
        return Ok(dir);
    }
    let text = format!("it belongs to user {owner}, expected {uid}");
    Err(PathError::new("use", path, io::Error::new(io::ErrorKind::PermissionDenied, text)))
}

fn restore_directory(
    dir: &HostFile,
    path: &Path,
    owner: (u32, u32),
    privilege: Privilege,
) -> Result<OwnershipReport, HookError> {
    let private_ids = privilege.private_ids();
    let owners = FileOwners { owner, private_ids, has_acls: privilege.uses_acls() };
    Ok(restore_ownership(dir.as_fd(), path, &owners)?)
}

fn report_changes(backend: &EngineBackend<'_>, path: &Path, report: &OwnershipReport) {
    let OwnershipReport { changed, removed_devices, problems } = report;
    if *changed > 0 {
        let path = path.display();
        backend
            .context
            .log
            .debug(&format!("{path}: ownership of {changed} files restored to the runner's user"));
    }
    if *removed_devices > 0 {
        let (path, removed) = (path.display(), format_count(*removed_devices, "device node"));
        backend
            .context
            .log
            .warning(&format!("{path}: removed {removed} of the job, which could give access to devices of this machine"));
    }
    warn(backend, path, problems);
}

/// Logs the problems with files of a directory.
pub fn warn(backend: &EngineBackend<'_>, path: &Path, problems: &WalkProblems) {
    for problem in &problems.first {
        backend.context.log.warning(&chain(problem));
    }
    if problems.count > problems.first.len() as u64 {
        let path = path.display();
        backend.context.log.warning(&format!(
            "{path}: {} problems in total; only the first are listed above",
            problems.count
        ));
    }
}
