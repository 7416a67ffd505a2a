//! The runner's directories after a job: what containers left there belongs to the runner's user, is
//! no device, and gives nobody somebody else's rights.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use super::backend::EngineBackend;
use super::job::Lent;
use super::plan::Plan;
use crate::container::{Engine, read_json_if_there, write_record};
use crate::container_hook::error::HookError;
use crate::sys::caller::is_root;
use crate::sys::error::chain;
use crate::sys::fs::PathError;
use crate::sys::give_back::{GiveBack, Problems, Report, give_back};
use crate::sys::host_file::{HostFile, HostRoot};
use crate::sys::privilege::Privilege;
use crate::sys::removal::remove_tree;
use crate::sys::userns::PrivateIds;

/// Returns the directories that containers of a job can write to: the work directory, and those of the
/// others that are not in it.
pub fn lent(backend: &EngineBackend<'_>, plans: &[Plan<'_>]) -> Lent {
    let mut lent = Lent { user: backend.context.runner.user, directories: Vec::new() };
    extend(&mut lent, backend, plans);
    lent
}

/// Adds the directories that more containers can write to; returns whether there are any new ones.
pub fn extend(lent: &mut Lent, backend: &EngineBackend<'_>, plans: &[Plan<'_>]) -> bool {
    let work = backend.context.runner.work();
    let directories: &mut Vec<PathBuf> = &mut lent.directories;
    let before = directories.len();
    for path in plans.iter().flat_map(Plan::writable) {
        let path = if path.starts_with(work) { work } else { path };
        if !directories.iter().any(|known| path.starts_with(known)) {
            directories.push(path.to_owned());
        }
    }
    directories.len() > before
}

/// The record of what is lent, beside the containers of an ordinary user's job.
const RECORD: &str = "lent.json";

/// Records for an ordinary user what is lent where it outlives a boot, as files do: the record of the job
/// does not. Of root's jobs nobody else has the ids, whatever becomes of their records.
pub fn remember(engine: &Engine, lent: &Lent) -> Result<(), HookError> {
    if engine.privilege.only_runner().is_some() {
        write_record(&engine.disk.join(RECORD), lent)?;
    }
    Ok(())
}

/// Returns what is lent whatever became of the record of the job; none if nothing is known.
pub fn remembered(engine: &Engine) -> Option<Lent> {
    engine.privilege.only_runner()?;
    read_json_if_there(&engine.disk.join(RECORD)).ok().flatten()
}

/// Forgets what was given back.
pub fn forget(engine: &Engine) -> Result<(), HookError> {
    if engine.privilege.only_runner().is_some() {
        remove_tree(&engine.disk.join(RECORD))?;
    }
    Ok(())
}

/// Gives the directories back as far as the runner may name them; what goes wrong is told.
pub fn by_runner(backend: &EngineBackend<'_>, lent: &Lent) {
    let privilege = backend.engine.privilege;
    for path in &lent.directories {
        let report = match backend.context.runner.files.open(path) {
            Ok(dir) => give(&dir, path, lent.user, privilege).map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        };
        match report {
            Ok(report) => report_changes(backend, path, &report),
            Err(problem) => backend.context.log.warning(&problem),
        }
    }
}

/// Gives the directories of a job back whose runner is gone.
pub fn by_root(lent: &Lent, privilege: Privilege) -> Result<(), HookError> {
    for path in &lent.directories {
        // What the runner's user has replaced or removed since is theirs.
        if let Ok(dir) = open(path, lent.user) {
            give(&dir, path, lent.user, privilege)?;
        }
    }
    Ok(())
}

/// Opens a directory of a user, to which no symbolic link leads. A job may have given it to another user of
/// its container: then the directory above belongs to the user.
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

fn give(
    dir: &HostFile,
    path: &Path,
    owner: (u32, u32),
    privilege: Privilege,
) -> Result<Report, HookError> {
    let private = privilege.container_ids();
    let ids = GiveBack { owner, private, has_lists: privilege.lends_by_lists() };
    Ok(give_back(dir.as_fd(), path, &ids)?)
}

fn report_changes(backend: &EngineBackend<'_>, path: &Path, report: &Report) {
    let Report { changed, removed_devices, problems } = report;
    if *changed > 0 {
        let path = path.display();
        backend
            .context
            .log
            .debug(&format!("{path}: {changed} files given back to the runner's user"));
    }
    if *removed_devices > 0 {
        let path = path.display();
        backend
            .context
            .log
            .warning(&format!("{path}: {removed_devices} device nodes of the job removed"));
    }
    warn(backend, path, problems);
}

/// Warns of what could not be done with single files of a directory.
pub fn warn(backend: &EngineBackend<'_>, path: &Path, problems: &Problems) {
    for problem in &problems.first {
        backend.context.log.warning(&chain(problem));
    }
    if problems.count > problems.first.len() as u64 {
        let path = path.display();
        backend.context.log.warning(&format!("{path}: {} problems in all", problems.count));
    }
}
