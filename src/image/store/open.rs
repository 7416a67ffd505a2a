//! Opening the store.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::StoreError;
use crate::image::Limits;
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, PathError, ReplaceOptions, Symlinks, read_if_there,
};
use crate::sys::lock::{BRIEF, FileLock};
use crate::sys::privilege::Privilege;
use crate::sys::record::{decode, encode};
use crate::sys::removal::remove_tree;
use crate::sys::trash::Trash;

/// More than any record has: one holds an image's configuration.
const MAX_RECORD_BYTES: u64 = 16 << 20;

/// Where the store is and what a layer may cost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The directory of images and layers, which outlives a boot.
    pub root: PathBuf,
    /// The directory of what does not outlive a boot.
    pub run: PathBuf,
    /// What unpacking a layer may cost.
    pub limits: Limits,
    /// Whose layers' files can be.
    pub privilege: Privilege,
}

impl StoreOptions {
    /// Returns those of a store in these directories, with the default limits, of root.
    pub fn new(root: impl Into<PathBuf>, run: impl Into<PathBuf>) -> Self {
        StoreOptions {
            root: root.into(),
            run: run.into(),
            limits: Limits::default(),
            privilege: Privilege::Root,
        }
    }
}

/// The store. It holds nothing open but its own path: any number of processes can have it.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) options: StoreOptions,
    /// Which boot of the machine this is.
    pub(super) boot: String,
    /// Where what cannot be removed is set aside.
    trash: Trash,
}

impl Store {
    /// Opens the store, and makes its directories if there are none.
    pub fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let boot_id = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(boot_id).at("read", boot_id)?.trim().to_owned();
        let trash = Trash::of(&options.root);
        let store = Store { options, boot, trash };
        for path in [&store.images_dir(), &store.layers_dir(), &store.leases_dir()] {
            DirBuilder::new().recursive(true).mode(0o700).create(path).at("make", path)?;
        }
        Ok(store)
    }

    /// Returns what it was opened with.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Returns where what cannot be removed is set aside.
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

    /// Lets others say what they need too, but nobody remove anything.
    pub(super) fn share(&self) -> Result<FileLock, PathError> {
        FileLock::shared(&self.options.root.join("lock"), BRIEF)
    }

    /// Lets nobody say what they need meanwhile.
    pub(super) fn exclude(&self) -> Result<FileLock, PathError> {
        FileLock::exclusive(&self.options.root.join("lock"), BRIEF)
    }
}

/// Writes a record, whatever is in its place. It may be lost in a power cut, with what it describes.
pub fn write_record(path: &Path, record: &impl Serialize) -> Result<(), StoreError> {
    // Nothing else than a file is replaced.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        remove_tree(path)?;
    }
    let text = encode(record);
    let options = ReplaceOptions {
        mode: Some(0o600),
        durability: Durability::Unsynced,
        ..ReplaceOptions::default()
    };
    Ok(FileAt::open(path, Symlinks::Refuse)?.replace(&text, &options)?)
}

/// Reads a record, if there is one.
pub fn read_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let Some(text) = read_if_there(path, MAX_RECORD_BYTES)? else { return Ok(None) };
    Ok(Some(decode(path, &text)?))
}

/// Reads a record that is as none if nobody can read it, as after a power cut; but for one of a newer
/// version, in whose place nothing else may come.
pub fn read_whole<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    match read_record(path) {
        Err(error) if error.is_unreadable() && !error.is_newer() => Ok(None),
        result => result,
    }
}

/// Returns the names in a directory, hidden ones too.
pub fn names(dir: &Path) -> Result<Vec<String>, PathError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).at("list", dir)? {
        // Another name is none of ours.
        names.extend(entry.at("list", dir)?.file_name().into_string());
    }
    Ok(names)
}

/// Removes a file. Nothing there is no error.
pub fn remove_file(path: &Path) -> Result<(), PathError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result.at("remove", path),
    }
}
