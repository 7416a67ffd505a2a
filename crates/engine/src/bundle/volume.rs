//! Volumes: directories created when first mounted, with the image's files at the mount target.
//!
//! A volume is filled under another name and then renamed. A volume that other containers may have mounted is
//! not filled: with symlinks, they could redirect the copy anywhere.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, lchown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use oci_hooks_files::fs::{
    PathContext as _, PathError, create_if_missing, entries_in, make_private, read_if_there,
    replace_unsynced,
};
use oci_hooks_files::lock::{FileLock, LONG_LOCK_TIMEOUT};
use oci_hooks_files::rollback::Rollback;
use oci_hooks_host::detached::{DetachedMount, MountAttributes, MountDepth, cannot_map_owners};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::trash::Trash;
use oci_hooks_host::tree::{self, CopyOptions, CopyPurpose, OpenDirectory, OwnerShift};
use oci_hooks_host::userns::{NamespaceMapping, PrivateIds};
use oci_hooks_host::version;
use oci_hooks_image::ImageConfig;

use super::BundleError;
use super::devices::DeviceNode;
use super::options::{BundleOptions, IdMapping};
use super::rootfs_dir::RootfsDir;
use super::user::ContainerUser;

/// Size limit of the file that lists a volume's containers, larger than any real one.
const MAX_USERS_BYTES: u64 = 1 << 20;

/// Suffix of a volume's lock file.
const LOCK: &str = ".lock";
/// Suffix of the directory in which a volume is filled, or from which it is removed.
const NEW: &str = ".new";
/// Suffix of the file that lists a volume's containers.
const USERS: &str = ".users";

/// Directory that ext4 creates at the root of each file system.
const FOUND: &str = "lost+found";

/// Opens a volume, creating it if missing, and returns the id mapping with which it must be
/// mounted. An empty volume that no container uses gets the image's files at `fill`, if that is
/// given.
///
/// If idmapped mounts are available, files of a shared volume have [`PrivateIds::STORED`] on disk,
/// which all containers see as their own ids from 0 on. Files of other volumes have the host ids of
/// their container.
pub fn open(
    container: MountContext<'_>,
    path: &Path,
    fill: Option<&Path>,
    is_shared: bool,
) -> Result<(HostFile, Option<IdMapping>), BundleError> {
    let parent = path.parent().unwrap_or(path);
    make_private(parent)?;
    let BundleOptions { private_ids, user_namespace, privilege, .. } = container.options;
    let has_users = user_namespace.is_some();
    // Containers without a user namespace may run where owners cannot be mapped.
    let is_stored =
        is_shared && privilege.has_idmapped_mounts() && (has_users || can_map_owners(parent)?);
    let owners =
        if is_stored { Some(PrivateIds::STORED) } else { has_users.then_some(*private_ids) };
    let _lock = FileLock::acquire_exclusive(&auxiliary_path(path, LOCK), LONG_LOCK_TIMEOUT)?;
    let mut users = VolumeUsers::read(path)?;
    if users.paths.is_empty()
        && let Some(target) = fill
        && is_empty(path)?
        && let Some(filled) = create_filled(container, path, target, owners)?
    {
        // Replaces an empty directory, if it exists.
        fs::rename(&filled, path).with_path("rename", &filled)?;
    }
    create_if_missing(path, 0o755)?;
    if let Some(PrivateIds { first, .. }) = owners
        // No process in a user namespace or an idmapped mount can give a file to the host's root.
        && fs::symlink_metadata(path).with_path("inspect", path)?.uid() == 0
    {
        lchown(path, Some(first), Some(first)).with_path("change the owner of", path)?;
    }
    if let Some(record) = &container.options.record {
        users.paths.push(record.clone());
        users.write(path)?;
    }
    Ok((HostFile::open_trusted(path)?, is_stored.then_some(IdMapping::Stored)))
}

/// Returns whether the kernel can map the owners of files in a directory, and of overlay layers.
fn can_map_owners(directory: &Path) -> Result<bool, BundleError> {
    if !version::supports_idmapped_layers() {
        return Ok(false);
    }
    let file = HostFile::open_trusted(directory)?;
    let namespace = NamespaceMapping::stored_for_host().namespace();
    let namespace = namespace.map_err(|error| file.error("map the owners of files in", error))?;
    let tree = DetachedMount::copy_of(&file, MountDepth::Single)?;
    let owners = Some(namespace.as_fd());
    match tree.set(&MountAttributes { owners, ..MountAttributes::default() }) {
        Err(error) if cannot_map_owners(&error) => Ok(false),
        set => Ok(set.map(|()| true)?),
    }
}

/// Returns the path of an auxiliary file of a volume.
fn auxiliary_path(path: &Path, end: &str) -> PathBuf {
    // Names of volumes begin with a letter or digit.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{end}"))
}

fn is_empty(path: &Path) -> Result<bool, PathError> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        entries => Ok(entries.with_path("list", path)?.next().is_none()),
    }
}

/// Returns a new directory with the image's files at a path, or `None` if the image has no directory there.
fn create_filled(
    container: MountContext<'_>,
    path: &Path,
    target: &Path,
    owners: Option<PrivateIds>,
) -> Result<Option<PathBuf>, BundleError> {
    let Some(source) = container.inside.directory(target)? else { return Ok(None) };
    let new = auxiliary_path(path, NEW);
    // Leftover of a killed process.
    remove_tree(&new)?;
    let mut undo = Rollback::new();
    undo.push(|| drop(remove_tree(&new)));
    DirBuilder::new().mode(0o700).create(&new).with_path("create the directory", &new)?;
    let to = HostFile::open_trusted(&new)?.reopen()?;
    let from_path = container.inside.host_path(target);
    let PrivateIds { first, count } = container.options.private_ids;
    let from = container.options.user_namespace.as_ref().map_or(0, |_| first);
    let owners = owners.map(|owners| OwnerShift { from, to: owners.first, count });
    let options = CopyOptions { purpose: CopyPurpose::Plain, owners };
    let source = OpenDirectory { directory: source.as_fd(), path: &from_path };
    tree::copy_between(source, OpenDirectory { directory: to.as_fd(), path: &new }, options)?;
    undo.disarm();
    Ok(Some(new))
}

/// Removes, in a directory of volumes, the volumes that killed processes were filling.
pub fn remove_unfinished(volumes: &Path) -> Result<(), PathError> {
    for entry in entries_in(volumes)? {
        let name = entry.file_name();
        let volume = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_suffix(NEW));
        let Some(volume) = volume.map(|volume| volumes.join(volume)) else { continue };
        // A live process holds the lock while it fills the volume.
        if let Some(_lock) = FileLock::try_exclusive(&auxiliary_path(&volume, LOCK))? {
            remove_tree(&auxiliary_path(&volume, NEW))?;
        }
    }
    Ok(())
}

/// Returns the names of the volumes in a directory, sorted.
pub fn volumes_in(directory: &Path) -> Result<Vec<String>, PathError> {
    let mut names = Vec::new();
    for entry in entries_in(directory)? {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name().into_string().ok();
        let is_volume = |name: &String| is_directory && !name.starts_with('.') && name != FOUND;
        names.extend(name.filter(is_volume));
    }
    names.sort();
    Ok(names)
}

/// Returns the containers that use a volume, each as a path that exists as long as the container,
/// and the time when a container last got the volume.
pub fn volume_users(volume: &Path) -> Result<(Vec<PathBuf>, SystemTime), BundleError> {
    let users = VolumeUsers::read(volume)?.paths;
    let list = auxiliary_path(volume, USERS);
    let found =
        fs::metadata(&list).or_else(|_| fs::metadata(volume)).with_path("look up", volume)?;
    Ok((users, found.modified().with_path("look up", volume)?))
}

/// Removes a volume that no container uses, with its auxiliary files; moves files that cannot be
/// removed to the trash. The volume must exist, and its owner must not create or start containers
/// meanwhile.
pub fn remove_volume(volume: &Path, trash: &Trash) -> Result<(), BundleError> {
    // If this process is killed from here on, the owner's next job removes the leftovers.
    let aside = auxiliary_path(volume, NEW);
    remove_tree(&aside)?;
    fs::rename(volume, &aside).with_path("rename", volume)?;
    trash.remove(&aside)?;
    for end in [USERS, LOCK] {
        remove_tree(&auxiliary_path(volume, end))?;
    }
    Ok(())
}

/// The containers that use a volume, each as a path that exists as long as the container.
struct VolumeUsers {
    paths: Vec<PathBuf>,
}

impl VolumeUsers {
    /// Reads the containers that use a volume, without those already removed.
    fn read(volume: &Path) -> Result<Self, BundleError> {
        let path = auxiliary_path(volume, USERS);
        let text = read_if_there(&path, MAX_USERS_BYTES)
            .map_err(|error| PathError::new("read", &path, io::Error::other(error)))?;
        let mut paths: Vec<PathBuf> =
            text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        paths.retain(|path| path.exists());
        Ok(VolumeUsers { paths })
    }

    fn write(&self, volume: &Path) -> Result<(), BundleError> {
        let path = auxiliary_path(volume, USERS);
        let text = serde_json::to_vec(&self.paths).unwrap_or_default();
        let written = replace_unsynced(&path, &text, 0o600);
        Ok(written.map_err(|error| PathError::new("write", &path, io::Error::other(error)))?)
    }
}

/// Inputs for preparing a container's mounts.
#[derive(Clone, Copy, Debug)]
pub struct MountContext<'a> {
    pub image: &'a ImageConfig,
    pub options: &'a BundleOptions,
    pub inside: &'a RootfsDir,
    pub user: &'a ContainerUser,
    pub rootfs: &'a Path,
    /// The directory of the bundle.
    pub dir: &'a Path,
    /// Devices to mount, since they cannot be created in the container.
    pub nodes: &'a [DeviceNode],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_filled_volumes_of_ended_processes_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        remove_unfinished(&dir.path().join("none")).unwrap();
        for name in ["whole/file", ".half.new/file", ".going-on.new/file", ".whole.users"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let lock =
            FileLock::acquire_exclusive(&dir.path().join(".going-on.lock"), LONG_LOCK_TIMEOUT)
                .unwrap();
        let is_there = |name: &str| dir.path().join(name).exists();
        remove_unfinished(dir.path()).unwrap();
        assert!(is_there(".going-on.new") && !is_there(".half.new"));
        drop(lock);
        remove_unfinished(dir.path()).unwrap();
        assert!(!is_there(".going-on.new") && is_there("whole/file") && is_there(".whole.users"));
    }
}
