//! Opens the store, and reads and writes its records.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use oci_hooks_files::fs::{
    PathContext as _, PathError, make_private, read_if_there, replace_unsynced,
};
use oci_hooks_files::lock::{FileLock, LOCK_TIMEOUT};
use oci_hooks_files::record::{decode, encode};
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_host::trash::Trash;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::debug;

use super::error::StoreError;
use crate::{Digest, LayerLimits};

/// Size limit of a record; an image's record contains its configuration.
const MAX_RECORD_BYTES: u64 = 16 << 20;

/// Time for which a registry that could not be reached is not asked about images in the store.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// Directories, limits and privilege of the store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Directory of images and layers, which persists across boots.
    pub root: PathBuf,
    /// Directory of leases, which is cleared on reboot.
    pub run: PathBuf,
    /// Limits of unpacking a layer.
    pub limits: LayerLimits,
    /// Privilege that decides which owners the files of layers can have.
    pub privilege: Privilege,
}

impl StoreOptions {
    /// Returns the options of root's store in these directories, with default limits.
    pub fn new(root: impl Into<PathBuf>, run: impl Into<PathBuf>) -> Self {
        StoreOptions {
            root: root.into(),
            run: run.into(),
            limits: LayerLimits::default(),
            privilege: Privilege::Root,
        }
    }
}

/// Image store. It keeps no files open, so any number of processes can share it.
#[derive(Clone, Debug)]
pub struct ImageStore {
    pub(super) options: StoreOptions,
    /// ID of the current boot.
    pub(super) boot: String,
    /// Trash, which takes directories that cannot be removed.
    trash: Trash,
}

impl ImageStore {
    /// Opens the store, and creates missing directories.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let boot_id = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(boot_id).with_path("read", boot_id)?.trim().to_owned();
        let trash = Trash::of(&options.root);
        let store = ImageStore { options, boot, trash };
        for path in [&store.images_dir(), &store.layers_dir(), &store.leases_dir()] {
            make_private(path)?;
        }
        Ok(store)
    }

    /// Returns the options of the store.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Returns the trash, which takes directories that cannot be removed.
    pub fn trash(&self) -> &Trash {
        &self.trash
    }

    pub(super) fn images_dir(&self) -> PathBuf {
        self.options.root.join("images")
    }

    pub(super) fn layers_dir(&self) -> PathBuf {
        self.options.root.join("layers")
    }

    pub(super) fn leases_dir(&self) -> PathBuf {
        self.options.run.join("leases")
    }

    /// Returns the time since a registry could not be reached; `None` if it is to be asked again.
    pub(crate) fn silence(&self, registry: &str) -> Option<Duration> {
        let path = self.silence_path(registry);
        let noted = fs::metadata(&path).ok()?.modified().ok()?;
        let since = SystemTime::now().duration_since(noted).ok();
        let since = since.filter(|since| *since < SILENCE);
        if since.is_none() {
            // The file has no effect any more.
            let _ = fs::remove_file(&path);
        }
        since
    }

    /// Notes that a registry could not be reached.
    pub(crate) fn note_unreachable(&self, registry: &str) {
        let path = self.silence_path(registry);
        let made = fs::create_dir_all(self.silences_dir()).and_then(|()| fs::write(path, ""));
        if let Err(error) = made {
            debug!(%error, "cannot record that the registry is unreachable");
        }
    }

    fn silence_path(&self, registry: &str) -> PathBuf {
        self.silences_dir().join(Digest::of(registry.as_bytes()).hex())
    }

    fn silences_dir(&self) -> PathBuf {
        self.options.root.join("unreachable")
    }

    /// Takes the shared lock, under which images and leases are added and nothing is removed.
    pub(super) fn share(&self) -> Result<FileLock, PathError> {
        FileLock::acquire_shared(&self.options.root.join("lock"), LOCK_TIMEOUT)
    }

    /// Takes the exclusive lock, under which no images or leases are added.
    pub(super) fn exclude(&self) -> Result<FileLock, PathError> {
        FileLock::acquire_exclusive(&self.options.root.join("lock"), LOCK_TIMEOUT)
    }
}

/// Writes a record, replacing anything at its path. A power cut may lose it, with the layer it
/// describes.
pub fn write_record(path: &Path, record: &impl Serialize) -> Result<(), StoreError> {
    // `replace` works on files only.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        remove_tree(path)?;
    }
    Ok(replace_unsynced(path, &encode(record), 0o600)?)
}

/// Reads a record, if it exists.
pub fn read_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let Some(text) = read_if_there(path, MAX_RECORD_BYTES)? else { return Ok(None) };
    Ok(Some(decode(path, &text)?))
}

/// Reads a record. An unreadable one, as after a power cut, counts as missing, unless a newer
/// version wrote it, which must not be replaced.
pub fn read_whole<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    match read_record(path) {
        Err(error) if error.is_unreadable() && !error.is_newer() => Ok(None),
        result => result,
    }
}

/// Returns the names in a directory, including hidden ones.
pub fn names(dir: &Path) -> Result<Vec<String>, PathError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_path("list", dir)? {
        // The store creates only UTF-8 names.
        names.extend(entry.with_path("list", dir)?.file_name().into_string());
    }
    Ok(names)
}
