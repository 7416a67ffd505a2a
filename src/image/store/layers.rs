//! Layers: unpacked once, and there as a whole or not at all.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use rustix::fs::syncfs;
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::open::{Store, names, read_record, read_whole, write_record};
use super::served::{self, Served};
use super::unpack_lock::{self, LayerRequest, LockedLayer, UnpackLock};
use crate::image::layer::{Blob, Target, Unpacked, prove, unpack};
use crate::image::{Descriptor, Digest, Pace};
use crate::sys::fs::{PathContext as _, PathError, random_u64};

/// More than any layer takes. A record that says so is broken, and sums of sizes stay numbers.
const MAX_SIZE_BYTES: u64 = 1 << 48;

/// A layer in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layer {
    /// The digest of its archive.
    pub diff_id: Digest,
    /// The directory with its files, as overlayfs takes it.
    pub path: PathBuf,
    /// About how much of the disk it takes.
    pub size_bytes: u64,
    pub entries: u64,
    /// Whether it hides all layers below it.
    pub is_opaque: bool,
}

/// What `layer.json` says.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    size_bytes: u64,
    entries: u64,
    is_opaque: bool,
    /// The boot in which it was written, until it is known to be on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

/// A layer that is unpacked, where nobody sees it yet.
pub struct Filled {
    lock: UnpackLock,
    diff_id: Digest,
    record: Record,
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
        let Some(record) = read_whole::<Record>(&dir.join("layer.json"))? else { return Ok(None) };
        if record.boot.as_ref().is_some_and(|boot| *boot != self.boot)
            || record.size_bytes > MAX_SIZE_BYTES
        {
            return Ok(None);
        }
        Ok(Some(Layer::new(diff_id, &dir, &record)))
    }

    /// Returns a layer if it is there, and this version of the program can read its record.
    pub(super) fn readable_layer(&self, diff_id: &Digest) -> Result<Option<Layer>, StoreError> {
        match self.layer(diff_id) {
            Err(error) if error.is_newer() => Ok(None),
            layer => layer,
        }
    }

    /// Returns whether a layer is there, by its diff ID.
    pub fn has_layer(&self, diff_id: &Digest) -> Result<bool, StoreError> {
        Ok(self.layer(diff_id)?.is_some())
    }

    /// Unpacks a layer, and checks size and digest of the blob and the digest of the archive in
    /// it. Several may be unpacked at once.
    ///
    /// If another process unpacks the same blob, this waits for it, as long as it gets on. If the
    /// layer is there in the end, the blob is checked all the same: who does not have it shall not
    /// get the layer either. Only what holds a [`Reservation`](super::Reservation) is sure to stay.
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
        let pace = Pace::default();
        match self.lock_layer(&LayerRequest { diff_id, blob: blob.digest, source: "", pace })? {
            LockedLayer::Present(layer) => self.prove(blob, diff_id).map(|()| layer),
            LockedLayer::Missing(lock) => self.finish(self.fill(lock, blob, diff_id)?, None),
        }
    }

    /// Checks that a blob holds a layer that is there.
    pub(in crate::image) fn prove(
        &self,
        blob: Blob<'_, impl Read + Send>,
        diff_id: &Digest,
    ) -> Result<(), StoreError> {
        prove(blob, diff_id, &self.options.limits)
            .map_err(|source| StoreError::Unpack { diff_id: diff_id.clone(), source })
    }

    /// Unpacks a layer where nobody sees it yet.
    pub(in crate::image) fn fill(
        &self,
        lock: UnpackLock,
        blob: Blob<'_, impl Read + Send>,
        diff_id: &Digest,
    ) -> Result<Filled, StoreError> {
        let Blob { reader, digest, size } = blob;
        let blob = Blob { reader: lock.watch(reader)?, digest, size };
        let tree = lock.path.join("tree");
        let target = Target { tree: &tree, privilege: self.options.privilege };
        let unpacked = unpack(blob, diff_id, &self.options.limits, target)
            .map_err(|source| StoreError::Unpack { diff_id: diff_id.clone(), source })?;
        let Unpacked { size_bytes, entries, is_opaque } = unpacked;
        let record = Record { size_bytes, entries, is_opaque, boot: Some(self.boot.clone()) };
        write_record(&lock.path.join("layer.json"), &record)?;
        Ok(Filled { lock, diff_id: diff_id.clone(), record })
    }

    /// Has everybody see a layer, and who gave it. Who unpacked it first wins.
    pub(in crate::image) fn finish(
        &self,
        filled: Filled,
        served: Option<&Served<'_>>,
    ) -> Result<Layer, StoreError> {
        let Filled { lock, diff_id, record } = filled;
        if let Some(served) = served {
            served::note(&lock.path, served)?;
        }
        let dir = self.layer_dir(&diff_id);
        let made = Layer::new(&diff_id, &dir, &record);
        let Some(mut lock) = lock.finish(&dir)? else { return Ok(made) };
        // Alone, or two would take each other's for what did not survive a power cut.
        let excluded = self.exclude()?;
        let mut gone = Vec::new();
        let layer = loop {
            if let Some(layer) = self.layer(&diff_id)? {
                if let Some(served) = served {
                    self.note_served(&diff_id, served)?;
                }
                break layer;
            }
            gone.extend(self.take_away(&dir)?);
            match lock.finish(&dir)? {
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

    pub(super) fn layer_dir(&self, diff_id: &Digest) -> PathBuf {
        self.layers_dir().join(file_name(diff_id))
    }

    /// Takes a layer away, so that nobody sees it half removed, and returns what is left to
    /// remove.
    pub(super) fn take_away(&self, dir: &Path) -> Result<Option<PathBuf>, PathError> {
        let gone = self.layers_dir().join(format!(".gone-{:016x}", random_u64()));
        match fs::rename(dir, &gone) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            result => result.at("rename", dir).map(|()| Some(gone)),
        }
    }

    /// Removes what processes left that died while they unpacked or removed layers.
    pub(super) fn sweep_layers(&self) -> Result<(), PathError> {
        let layers = self.layers_dir();
        for name in names(&layers)? {
            let path = layers.join(&name);
            if name.starts_with(".gone-") {
                self.trash().remove(&path)?;
            } else if name.starts_with(unpack_lock::PREFIX)
                && let Some(lock) = UnpackLock::take(&path)?
            {
                lock.discard(self.trash())?;
            }
        }
        Ok(())
    }
}

fn file_name(digest: &Digest) -> String {
    format!("{}-{}", digest.algorithm().name(), digest.hex())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::StoreOptions;

    #[test]
    fn a_layer_that_says_it_is_larger_than_any_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let (root, run) = (dir.path().join("root"), dir.path().join("run"));
        let store = Store::open(StoreOptions::new(root, run)).unwrap();
        let found = |size_bytes: u64| {
            let diff_id = Digest::of(&size_bytes.to_be_bytes());
            let layer = store.layer_dir(&diff_id);
            fs::create_dir(&layer).unwrap();
            let record =
                format!("{{\"size_bytes\":{size_bytes},\"entries\":1,\"is_opaque\":false}}");
            fs::write(layer.join("layer.json"), record).unwrap();
            store.has_layer(&diff_id).unwrap()
        };
        assert!(found(MAX_SIZE_BYTES));
        assert!(!found(MAX_SIZE_BYTES + 1) && !found(u64::MAX) && !found(u64::MAX - 1));
        // Sizes can be added up.
        assert_eq!(store.usage().unwrap().bytes, MAX_SIZE_BYTES);
    }
}
