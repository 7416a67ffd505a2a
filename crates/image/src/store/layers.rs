//! Layers: unpacked once, and published atomically.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError, random_u64};
use oci_hooks_host::usage::disk_bytes;
use rustix::fs::syncfs;
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::open::{ImageStore, names, read_record, read_whole, write_record};
use super::served::{self, ServedBlob};
use super::unpack_lock::{self, LayerRequest, LockedLayer, UnpackLock};
use crate::layer::{LayerBlob, UnpackSummary, UnpackTarget, unpack, verify_blob};
use crate::{Descriptor, Digest, MinRate};

/// Limit of a layer's size: a record with more is corrupt, and sums of sizes cannot overflow.
const MAX_SIZE_BYTES: u64 = 1 << 48;

/// A layer in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Digest of the uncompressed archive.
    pub diff_id: Digest,
    /// Directory with the files, to be mounted by overlayfs.
    pub path: PathBuf,
    pub size_bytes: u64,
    pub entries: u64,
    pub is_opaque: bool,
    /// Highest user or group that a file belongs to.
    pub highest_owner: u32,
}

/// Content of `layer.json`.
#[derive(Debug, Serialize, Deserialize)]
struct LayerRecord {
    size_bytes: u64,
    entries: u64,
    is_opaque: bool,
    highest_owner: u32,
    /// ID of the boot in which the layer was written; `None` once the layer is synced to disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

/// Unpacked layer that is not visible in the store yet.
pub struct FilledLayer {
    lock: UnpackLock,
    diff_id: Digest,
    record: LayerRecord,
}

impl Layer {
    fn new(diff_id: &Digest, dir: &Path, record: &LayerRecord) -> Self {
        Layer {
            diff_id: diff_id.clone(),
            path: dir.join("tree"),
            size_bytes: record.size_bytes,
            entries: record.entries,
            is_opaque: record.is_opaque,
            highest_owner: record.highest_owner,
        }
    }
}

impl ImageStore {
    /// Returns a layer by its diff ID, if it is in the store.
    pub fn layer(&self, diff_id: &Digest) -> Result<Option<Layer>, StoreError> {
        let dir = self.layer_dir(diff_id);
        let Some(record) = read_whole::<LayerRecord>(&dir.join("layer.json"))? else {
            return Ok(None);
        };
        if record.boot.as_ref().is_some_and(|boot| *boot != self.boot)
            || record.size_bytes > MAX_SIZE_BYTES
        {
            return Ok(None);
        }
        Ok(Some(Layer::new(diff_id, &dir, &record)))
    }

    /// Returns a layer if it is in the store and this version of the program can read its record.
    pub(super) fn readable_layer(&self, diff_id: &Digest) -> Result<Option<Layer>, StoreError> {
        match self.layer(diff_id) {
            Err(error) if error.is_newer() => Ok(None),
            layer => layer,
        }
    }

    /// Returns whether the store has a layer, by its diff ID.
    pub fn has_layer(&self, diff_id: &Digest) -> Result<bool, StoreError> {
        Ok(self.layer(diff_id)?.is_some())
    }

    /// Unpacks a layer, and checks the size and digest of the blob and the digest of the archive in
    /// it. Several layers may be unpacked in parallel.
    ///
    /// If another process unpacks the same blob, this waits while that one makes progress. If the
    /// layer exists then, the blob is still checked: a caller without the blob must not get the
    /// layer. Only layers with a [`LayerReservation`](super::LayerReservation) are sure to stay.
    pub fn unpack_layer(
        &self,
        blob: &Descriptor,
        diff_id: &Digest,
        reader: impl Read + Send,
    ) -> Result<Layer, StoreError> {
        self.unpack_blob(LayerBlob { reader, digest: Some(&blob.digest), size: blob.size }, diff_id)
    }

    /// Unpacks a layer from a blob with or without a digest.
    pub(crate) fn unpack_blob(
        &self,
        blob: LayerBlob<'_, impl Read + Send>,
        diff_id: &Digest,
    ) -> Result<Layer, StoreError> {
        let min_rate = MinRate::default();
        match self.lock_layer(&LayerRequest { diff_id, blob: blob.digest, source: "", min_rate })? {
            LockedLayer::Present(layer) => self.verify_blob(blob, diff_id).map(|()| layer),
            LockedLayer::Missing(lock) => self.publish(self.fill(lock, blob, diff_id)?, None),
        }
    }

    /// Checks that a blob contains a stored layer.
    pub(crate) fn verify_blob(
        &self,
        blob: LayerBlob<'_, impl Read + Send>,
        diff_id: &Digest,
    ) -> Result<(), StoreError> {
        verify_blob(blob, diff_id, &self.options.limits)
            .map_err(|source| StoreError::Unpack { diff_id: diff_id.clone(), source })
    }

    /// Unpacks a layer into a directory that is not visible in the store yet.
    pub(crate) fn fill(
        &self,
        lock: UnpackLock,
        blob: LayerBlob<'_, impl Read + Send>,
        diff_id: &Digest,
    ) -> Result<FilledLayer, StoreError> {
        let LayerBlob { reader, digest, size } = blob;
        let blob = LayerBlob { reader: lock.watch(reader)?, digest, size };
        let tree = lock.path.join("tree");
        let target = UnpackTarget { tree: &tree, privilege: self.options.privilege };
        let unpacked = unpack(blob, diff_id, &self.options.limits, target)
            .map_err(|source| StoreError::Unpack { diff_id: diff_id.clone(), source })?;
        let UnpackSummary { size_bytes, entries, is_opaque, highest_owner } = unpacked;
        let boot = Some(self.boot.clone());
        let record = LayerRecord { size_bytes, entries, is_opaque, highest_owner, boot };
        write_record(&lock.path.join("layer.json"), &record)?;
        Ok(FilledLayer { lock, diff_id: diff_id.clone(), record })
    }

    /// Publishes a layer, with the registry that served it. The first process to do so wins.
    pub(crate) fn publish(
        &self,
        filled: FilledLayer,
        served: Option<&ServedBlob<'_>>,
    ) -> Result<Layer, StoreError> {
        let FilledLayer { lock, diff_id, record } = filled;
        if let Some(served) = served {
            served::note(&lock.path, served)?;
        }
        let dir = self.layer_dir(&diff_id);
        let made = Layer::new(&diff_id, &dir, &record);
        let Some(mut lock) = lock.publish(&dir)? else { return Ok(made) };
        // Exclusive: otherwise two processes could mistake each other's layer for a leftover of a
        // power cut.
        let excluded = self.exclude()?;
        let mut gone = Vec::new();
        let layer = loop {
            if let Some(layer) = self.layer(&diff_id)? {
                if let Some(served) = served {
                    self.note_served(&diff_id, served)?;
                }
                break layer;
            }
            gone.extend(self.rename_for_removal(&dir)?);
            match lock.publish(&dir)? {
                None => break made,
                Some(again) => lock = again,
            }
        };
        drop(excluded);
        for dir in &gone {
            self.trash().remove(dir)?;
        }
        Ok(layer)
    }

    /// Syncs the file system of the store, so that all layers written so far survive a power cut.
    /// This takes time: call it when no job waits.
    pub fn sync_file_system(&self) -> Result<(), StoreError> {
        let mut written = Vec::new();
        for (_, dir) in self.layer_dirs()? {
            let path = dir.join("layer.json");
            if let Ok(Some(record)) = read_record::<LayerRecord>(&path)
                && record.boot.as_deref() == Some(&self.boot)
            {
                written.push((path, LayerRecord { boot: None, ..record }));
            }
        }
        if written.is_empty() {
            return Ok(());
        }
        let layers = self.layers_dir();
        let dir = File::open(&layers).with_path("open", &layers)?;
        syncfs(&dir).with_path("sync", &layers)?;
        let _shared = self.share()?;
        for (path, record) in written {
            if path.exists() {
                write_record(&path, &record)?;
            }
        }
        Ok(())
    }

    /// Returns the diff IDs and directories of all complete layers, including unusable ones:
    /// corrupt, or not synced before a reboot.
    pub(super) fn layer_dirs(&self) -> Result<Vec<(Digest, PathBuf)>, PathError> {
        let layers = self.layers_dir();
        let digests = names(&layers)?.into_iter().filter_map(|name| {
            let digest = name.replacen('-', ":", 1).parse().ok()?;
            Some((digest, layers.join(name)))
        });
        Ok(digests.collect())
    }

    pub(super) fn layer_dir(&self, diff_id: &Digest) -> PathBuf {
        self.layers_dir().join(file_name(diff_id))
    }

    /// Renames a layer, so that it is never seen half removed, and returns the directory to remove.
    pub(super) fn rename_for_removal(&self, dir: &Path) -> Result<Option<PathBuf>, PathError> {
        let gone = self.layers_dir().join(format!(".gone-{:016x}", random_u64()));
        match fs::rename(dir, &gone) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            result => result.with_path("rename", dir).map(|()| Some(gone)),
        }
    }

    /// Removes leftovers of processes that died while they unpacked or removed layers, and returns their size.
    pub(super) fn sweep_layers(&self) -> Result<u64, PathError> {
        let layers = self.layers_dir();
        let mut freed_bytes = 0;
        // Only an estimate: an unreadable directory is removed all the same.
        let size = |path: &Path| disk_bytes(path).unwrap_or_default();
        for name in names(&layers)? {
            let path = layers.join(&name);
            if name.starts_with(".gone-") {
                freed_bytes += size(&path);
                self.trash().remove(&path)?;
            } else if name.starts_with(unpack_lock::PREFIX)
                && let Some(lock) = UnpackLock::take(&path)?
            {
                freed_bytes += size(&path);
                lock.discard(self.trash())?;
            }
        }
        Ok(freed_bytes)
    }
}

fn file_name(digest: &Digest) -> String {
    format!("{}-{}", digest.algorithm().name(), digest.hex())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreOptions;

    #[test]
    fn layer_with_an_impossible_size_is_treated_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        let (root, run) = (dir.path().join("root"), dir.path().join("run"));
        let store = ImageStore::open(StoreOptions::new(root, run)).unwrap();
        let found = |size_bytes: u64| {
            let diff_id = Digest::of(&size_bytes.to_be_bytes());
            let layer = store.layer_dir(&diff_id);
            fs::create_dir(&layer).unwrap();
            let record = format!(
                "{{\"size_bytes\":{size_bytes},\"entries\":1,\"is_opaque\":false,\"highest_owner\":0}}"
            );
            fs::write(layer.join("layer.json"), record).unwrap();
            store.has_layer(&diff_id).unwrap()
        };
        assert!(found(MAX_SIZE_BYTES));
        assert!(!found(MAX_SIZE_BYTES + 1) && !found(u64::MAX) && !found(u64::MAX - 1));
        // The sum of sizes does not overflow.
        assert_eq!(store.usage().unwrap().bytes, MAX_SIZE_BYTES);
    }
}
