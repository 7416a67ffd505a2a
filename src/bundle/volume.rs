//! Volumes: directories that are made when they are first mounted, with what the image has there.
//!
//! One is filled in a directory of its own, which then takes its name. A volume that others may have
//! mounted meanwhile is not touched: who has it could lead whoever fills it anywhere.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::BundleError;
use super::devices::Node;
use super::options::Options;
use super::rootfs_dir::RootfsDir;
use super::user::User;
use crate::image::ImageConfig;
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, PathError, ReplaceOptions, Symlinks, make_private,
    read_if_there,
};
use crate::sys::host_file::HostFile;
use crate::sys::lock::{FileLock, LONG};
use crate::sys::removal::remove_tree;
use crate::sys::rollback::Rollback;
use crate::sys::trash::Trash;
use crate::sys::tree::{self, CopyOptions, OpenDirectory, OwnerShift, Purpose};
use crate::sys::userns::PrivateIds;

/// More than the list of containers that have a volume is ever long.
const MAX_USERS_BYTES: u64 = 1 << 20;

/// What the names of what belongs to a volume end with: its lock, what it is filled in and removed from, and the
/// list of who has it.
const LOCK: &str = ".lock";
const NEW: &str = ".new";
const USERS: &str = ".users";

/// What ext4 has in the first directory of each file system.
const FOUND: &str = "lost+found";

/// Opens a volume, which is made if it is missing; an empty one that nobody has gets what the image
/// has at `fill`, if that is given.
pub fn open(
    container: MountContext<'_>,
    path: &Path,
    fill: Option<&Path>,
    is_shared: bool,
) -> Result<HostFile, BundleError> {
    let parent = path.parent().unwrap_or(path);
    make_private(parent)?;
    let _lock = FileLock::exclusive(&beside(path, LOCK), LONG)?;
    let mut users = Users::read(path)?;
    if users.paths.is_empty()
        && let Some(target) = fill
        && is_empty(path)?
        && let Some(filled) = filled(container, path, target)?
    {
        // Over an empty directory, if there is one.
        fs::rename(&filled, path).at("rename", &filled)?;
    }
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.at("make the directory", path)?,
    }
    if is_shared && let Some(record) = &container.options.record {
        users.paths.push(record.clone());
        users.write(path)?;
    }
    Ok(HostFile::open_trusted(path)?)
}

/// Returns the path of a file that belongs to a volume.
fn beside(path: &Path, end: &str) -> PathBuf {
    // Names of volumes begin with a letter or digit.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{end}"))
}

fn is_empty(path: &Path) -> Result<bool, PathError> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        entries => Ok(entries.at("list", path)?.next().is_none()),
    }
}

/// Returns a new directory with what the image has at a path; none if it has no directory there.
fn filled(
    container: MountContext<'_>,
    path: &Path,
    target: &Path,
) -> Result<Option<PathBuf>, BundleError> {
    let Some(source) = container.inside.directory(target)? else { return Ok(None) };
    let new = beside(path, NEW);
    // What a process left that was killed.
    remove_tree(&new)?;
    let mut undo = Rollback::new();
    undo.push(|| drop(remove_tree(&new)));
    DirBuilder::new().mode(0o700).create(&new).at("make the directory", &new)?;
    let to = HostFile::open_trusted(&new)?.reopen()?;
    let from_path = container.inside.on_host(target);
    // On disk a volume has the ids of the container.
    let PrivateIds { first, count } = container.options.private_ids;
    let has_users = container.options.user_namespace.is_some();
    let owners = has_users.then_some(OwnerShift { from: first, to: 0, count });
    let options = CopyOptions { purpose: Purpose::Plain, owners };
    let source = OpenDirectory { directory: source.as_fd(), path: &from_path };
    tree::copy_between(source, OpenDirectory { directory: to.as_fd(), path: &new }, options)?;
    undo.disarm();
    Ok(Some(new))
}

/// Removes what processes that were killed left of volumes that they filled, in a directory of volumes.
pub fn remove_unfinished(volumes: &Path) -> Result<(), PathError> {
    let entries = match fs::read_dir(volumes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.at("list", volumes)?,
    };
    for entry in entries {
        let name = entry.at("list", volumes)?.file_name();
        let volume = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_suffix(NEW));
        let Some(volume) = volume.map(|volume| volumes.join(volume)) else { continue };
        // Somebody who lives has the lock for as long as the volume is filled.
        if let Some(_lock) = FileLock::try_exclusive(&beside(&volume, LOCK))? {
            remove_tree(&beside(&volume, NEW))?;
        }
    }
    Ok(())
}

/// Returns the names of the volumes in a directory, sorted.
pub fn volumes_in(directory: &Path) -> Result<Vec<String>, PathError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", directory)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.at("list", directory)?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name().into_string().ok();
        let is_volume = |name: &String| is_directory && !name.starts_with('.') && name != FOUND;
        names.extend(name.filter(is_volume));
    }
    names.sort();
    Ok(names)
}

/// Returns which containers have a volume, by a path each that is there as long as the container is, and when a
/// container was given it last.
pub fn volume_users(volume: &Path) -> Result<(Vec<PathBuf>, SystemTime), BundleError> {
    let users = Users::read(volume)?.paths;
    let list = beside(volume, USERS);
    let found = fs::metadata(&list).or_else(|_| fs::metadata(volume)).at("look up", volume)?;
    Ok((users, found.modified().at("look up", volume)?))
}

/// Removes a volume that no container has, with what belongs to it; what cannot be removed is set aside. Its owner
/// must not make or begin containers meanwhile, and the volume has to be there.
pub fn remove_volume(volume: &Path, trash: &Trash) -> Result<(), BundleError> {
    // Whoever is killed from here on leaves what the next job of the owner removes.
    let aside = beside(volume, NEW);
    remove_tree(&aside)?;
    fs::rename(volume, &aside).at("rename", volume)?;
    trash.remove(&aside)?;
    for end in [USERS, LOCK] {
        remove_tree(&beside(volume, end))?;
    }
    Ok(())
}

/// The containers that have a volume, by a path each that is there as long as the container is.
struct Users {
    paths: Vec<PathBuf>,
}

impl Users {
    /// Reads who has a volume, without those who are gone.
    fn read(volume: &Path) -> Result<Self, BundleError> {
        let path = beside(volume, USERS);
        let text = read_if_there(&path, MAX_USERS_BYTES)
            .map_err(|error| PathError::new("read", &path, io::Error::other(error)))?;
        let mut paths: Vec<PathBuf> =
            text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        paths.retain(|path| path.exists());
        Ok(Users { paths })
    }

    fn write(&self, volume: &Path) -> Result<(), BundleError> {
        let path = beside(volume, USERS);
        let text = serde_json::to_vec(&self.paths).unwrap_or_default();
        let options = ReplaceOptions {
            mode: Some(0o600),
            durability: Durability::Unsynced,
            ..ReplaceOptions::default()
        };
        let written =
            FileAt::open(&path, Symlinks::Refuse).and_then(|file| file.replace(&text, &options));
        Ok(written.map_err(|error| PathError::new("write", &path, io::Error::other(error)))?)
    }
}

/// Whose mounts are prepared, and where.
#[derive(Clone, Copy, Debug)]
pub struct MountContext<'a> {
    pub image: &'a ImageConfig,
    pub options: &'a Options,
    pub inside: &'a RootfsDir,
    pub user: &'a User,
    pub rootfs: &'a Path,
    /// The directory of the bundle.
    pub dir: &'a Path,
    /// Devices that are mounted since nobody can make them in the container.
    pub nodes: &'a [Node],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_that_nobody_fills_any_more_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        remove_unfinished(&dir.path().join("none")).unwrap();
        for name in ["whole/file", ".half.new/file", ".going-on.new/file", ".whole.users"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let lock = FileLock::exclusive(&dir.path().join(".going-on.lock"), LONG).unwrap();
        let is_there = |name: &str| dir.path().join(name).exists();
        remove_unfinished(dir.path()).unwrap();
        assert!(is_there(".going-on.new") && !is_there(".half.new"));
        drop(lock);
        remove_unfinished(dir.path()).unwrap();
        assert!(!is_there(".going-on.new") && is_there("whole/file") && is_there(".whole.users"));
    }
}
