//! Layers: unpacked once, by one process at a time.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::syncfs;
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::open::{Store, names, read_record, remove_tree, write_record};
use crate::image::layer::{Blob, Unpacked, unpack};
use crate::image::{Descriptor, Digest};
use crate::sys::fs::{PathContext as _, PathError, unpredictable};

/// A layer in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The digest of its archive.
    pub diff_id: Digest,
    /// The directory with its files, as overlayfs takes it.
    pub path: PathBuf,
    /// About how much of the disk it takes.
    pub size_bytes: u64,
    /// Entries of its archive.
    pub entries: u64,
    /// Whether it hides all layers below it.
    pub is_opaque: bool,
}

/// What `layer.json` says.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    size_bytes: u64,
    entries: u64,
    #[serde(default)]
    is_opaque: bool,
    /// The boot in which it was written, until it is known to be on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

impl Layer {
    fn new(diff_id: &Digest, dir: &Path, record: &Record) -> Self {
        Layer {
            diff_id: diff_id.clone(),
            path: dir.join("tree"),
            size_bytes: record.size_bytes,
            entries: record.entries,
            is_opaque: record.is_opaque,
        }
    }
}

impl Store {
    /// Returns a layer if it is there, by its diff ID.
    pub fn layer(&self, diff_id: &Digest) -> Result<Option<Layer>, StoreError> {
        let dir = self.layer_dir(diff_id);
        let record: Record = match read_record(&dir.join("layer.json")) {
            Ok(Some(record)) => record,
            // A record is lost in a power cut as files are.
            Ok(None) | Err(StoreError::Record { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if record.boot.as_ref().is_some_and(|boot| *boot != self.boot) {
            return Ok(None);
        }
        Ok(Some(Layer::new(diff_id, &dir, &record)))
    }

    /// Returns whether a layer is there, by its diff ID.
    pub fn has_layer(&self, diff_id: &Digest) -> Result<bool, StoreError> {
        Ok(self.layer(diff_id)?.is_some())
    }

    /// Unpacks a layer, and checks size and digest of the blob and the digest of the archive in
    /// it. Several may be unpacked at once.
    ///
    /// If another process unpacks the same layer, this waits for it. If the layer is there in the
    /// end, nothing is read. Only what holds a [`Reservation`](super::Reservation) is sure to stay.
    pub fn unpack_layer(
        &self,
        blob: &Descriptor,
        diff_id: &Digest,
        reader: impl Read + Send,
    ) -> Result<Layer, StoreError> {
        self.unpack_blob(Blob { reader, digest: Some(&blob.digest), size: blob.size }, diff_id)
    }

    /// Unpacks a layer whose blob may have a digest or not.
    pub(in crate::image) fn unpack_blob(
        &self,
        blob: Blob<'_, impl Read + Send>,
        diff_id: &Digest,
    ) -> Result<Layer, StoreError> {
        let claim = match self.claim(diff_id)? {
            Claimed::Made(layer) => return Ok(layer),
            Claimed::Claim(claim) => claim,
        };
        let unpacked = unpack(blob, diff_id, &self.options.limits, &claim.path.join("tree"))
            .map_err(|source| StoreError::Unpack { diff_id: diff_id.clone(), source })?;
        let Unpacked { size_bytes, entries, is_opaque } = unpacked;
        let record = Record { size_bytes, entries, is_opaque, boot: Some(self.boot.clone()) };
        write_record(&claim.path.join("layer.json"), &record)?;

        let dir = self.layer_dir(diff_id);
        // What stands there did not survive a power cut.
        self.discard(&dir)?;
        claim.finish(&dir)?;
        Ok(Layer::new(diff_id, &dir, &record))
    }

    /// Syncs the file system of the store, so that the layers written until now outlive a power
    /// cut. To be called where nobody waits.
    pub fn settle(&self) -> Result<(), StoreError> {
        let mut written = Vec::new();
        for (_, dir) in self.layer_dirs()? {
            let path = dir.join("layer.json");
            if let Ok(Some(record)) = read_record::<Record>(&path)
                && record.boot.as_deref() == Some(&self.boot)
            {
                written.push((path, Record { boot: None, ..record }));
            }
        }
        if written.is_empty() {
            return Ok(());
        }
        let layers = self.layers_dir();
        let dir = File::open(&layers).at("open", &layers)?;
        syncfs(&dir).at("sync", &layers)?;
        let _shared = self.share()?;
        for (path, record) in written {
            if path.exists() {
                write_record(&path, &record)?;
            }
        }
        Ok(())
    }

    /// Returns the digests and directories of all whole layers, usable or not.
    pub(super) fn layer_dirs(&self) -> Result<Vec<(Digest, PathBuf)>, PathError> {
        let layers = self.layers_dir();
        let digests = names(&layers)?.into_iter().filter_map(|name| {
            let digest = name.replacen('-', ":", 1).parse().ok()?;
            Some((digest, layers.join(name)))
        });
        Ok(digests.collect())
    }

    fn layer_dir(&self, diff_id: &Digest) -> PathBuf {
        self.layers_dir().join(file_name(diff_id))
    }

    /// Takes a layer away, so that nobody sees it half removed, and returns what is left to
    /// remove.
    pub(super) fn set_aside(&self, dir: &Path) -> Result<Option<PathBuf>, PathError> {
        let gone = self.layers_dir().join(format!(".gone-{:016x}", unpredictable()));
        match fs::rename(dir, &gone) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            result => result.at("rename", dir).map(|()| Some(gone)),
        }
    }

    fn discard(&self, dir: &Path) -> Result<(), PathError> {
        self.set_aside(dir)?.map_or(Ok(()), |gone| remove_tree(&gone))
    }

    /// Removes what processes left that died while they unpacked or removed layers.
    pub(super) fn sweep_layers(&self) -> Result<(), PathError> {
        let layers = self.layers_dir();
        for name in names(&layers)? {
            let path = layers.join(&name);
            if name.starts_with(".gone-") {
                remove_tree(&path)?;
            } else if name.starts_with(".tmp-")
                && let Some(claim) = Claim::take(&path, File::try_lock)?
            {
                drop(claim);
            }
        }
        Ok(())
    }

    /// Gets the right to unpack a layer, or the layer if it is there.
    fn claim(&self, diff_id: &Digest) -> Result<Claimed, StoreError> {
        let path = self.layers_dir().join(format!(".tmp-{}", file_name(diff_id)));
        loop {
            if let Some(layer) = self.layer(diff_id)? {
                return Ok(Claimed::Made(layer));
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                result => result.at("make", &path)?,
            }
            let wait = |dir: &File| dir.lock().map_err(fs::TryLockError::Error);
            let Some(claim) = Claim::take(&path, wait)? else { continue };
            // It may have been made between the look above and the lock.
            if let Some(layer) = self.layer(diff_id)? {
                return Ok(Claimed::Made(layer));
            }
            claim.clear()?;
            return Ok(Claimed::Claim(claim));
        }
    }
}

fn file_name(digest: &Digest) -> String {
    format!("{}-{}", digest.algorithm().name(), digest.hex())
}

enum Claimed {
    Made(Layer),
    Claim(Claim),
}

/// A directory that a layer is unpacked in, with a lock on the directory itself: it goes where
/// the directory goes. Dropping it removes the directory.
struct Claim {
    path: PathBuf,
    _dir: File,
}

impl Claim {
    /// Locks the directory. Returns none if it is gone, or another one stands there by then, or
    /// somebody else has the lock and `lock` does not wait.
    fn take(
        path: &Path,
        lock: impl Fn(&File) -> Result<(), fs::TryLockError>,
    ) -> Result<Option<Self>, PathError> {
        let dir = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            result => result.at("open", path)?,
        };
        match lock(&dir) {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(PathError::new("lock", path, error)),
        }
        let ours = dir.metadata().at("read", path)?;
        match fs::symlink_metadata(path) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {
                Ok(Some(Claim { path: path.to_owned(), _dir: dir }))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PathError::new("read", path, error)),
        }
    }

    /// Removes what a process left here that died.
    fn clear(&self) -> Result<(), PathError> {
        for name in names(&self.path)? {
            let path = self.path.join(name);
            let kind = fs::symlink_metadata(&path).at("read", &path)?;
            if kind.is_dir() {
                remove_tree(&path)?;
            } else {
                fs::remove_file(&path).at("remove", &path)?;
            }
        }
        Ok(())
    }

    /// Makes the directory the layer.
    fn finish(mut self, layer: &Path) -> Result<(), PathError> {
        fs::rename(&self.path, layer).at("rename", &self.path)?;
        self.path.clear();
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // What cannot be removed now is swept later.
            drop(remove_tree(&self.path));
        }
    }
}
