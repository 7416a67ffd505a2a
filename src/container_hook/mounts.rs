//! Files and directories of the host, as mounts of a container.

use std::fs;
use std::io;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};

use super::error::HookError;
use super::hook::Hook;
use super::volumes::{Propagation, Source, Volume};
use crate::bundle::{self, Mount, MountSource};
use crate::sys::fs::PathContext as _;

/// Returns the mount of a `volumes:` entry, a `--volume` or a `--mount`; `own` is where a volume of
/// this container's own would be.
pub(super) fn user_mount(
    hook: &Hook<'_>,
    volume: &Volume,
    own: PathBuf,
) -> Result<Mount, HookError> {
    let source = match &volume.source {
        Source::Bind { path, create } => {
            if *create {
                make_directory(path, hook.runner.user)?;
            }
            MountSource::Bind {
                path: path.clone(),
                propagation: match volume.propagation {
                    None => bundle::Propagation::Private,
                    Some(Propagation::Slave) => bundle::Propagation::Slave,
                    Some(Propagation::Shared) => bundle::Propagation::Shared,
                },
                recursive: volume.recursive,
            }
        }
        Source::Named(name) => MountSource::Volume { path: hook.volume(name), copy: volume.copy },
        Source::Anonymous => MountSource::Volume { path: own, copy: volume.copy },
    };
    let is_bind = matches!(source, MountSource::Bind { .. });
    Ok(Mount {
        target: PathBuf::from(&volume.target),
        source,
        read_only: volume.read_only,
        subpath: None,
        ownership: if is_bind { hook.ownership() } else { None },
    })
}

/// Returns where one of the runner's own directories is, made if it is missing: the runner counts on
/// Docker for that.
///
/// Jobs can write in the runner's work directory. A link that one of them left there must not
/// have the next container get something else of the host.
pub(super) fn runner_directory(hook: &Hook<'_>, path: &Path) -> Result<PathBuf, HookError> {
    make_directory(path, hook.runner.user)?;
    let real = fs::canonicalize(path).at("find", path)?;
    let work = hook.runner.work();
    let real_work = fs::canonicalize(work).at("find", work)?;
    match path.strip_prefix(work) {
        Ok(relative) if real != real_work.join(relative) => {
            Err(HookError::Escapes { path: path.to_owned(), work: work.to_owned() })
        }
        _ => Ok(real),
    }
}

/// Makes a directory that is missing, and its parents, for a user.
fn make_directory(path: &Path, (uid, gid): (u32, u32)) -> Result<(), HookError> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_directory(parent, (uid, gid))?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => {
            result.at("make the directory", path)?;
            Ok(lchown(path, Some(uid), Some(gid)).at("set the owner of", path)?)
        }
    }
}
