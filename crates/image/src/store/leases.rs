//! Leases: layers in use, which no process removes.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError, make_private, random_u64};
use oci_hooks_files::record::encode;
use oci_hooks_host::removal::remove_tree;
use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::images::Image;
use super::open::{ImageStore, names, read_record, write_record};
use crate::Digest;

const RESERVED: &str = ".reserved-";

#[derive(Debug, Serialize, Deserialize)]
struct LeaseRecord {
    layers: Vec<Digest>,
}

/// Layers in use.
#[derive(Debug, Default)]
pub struct LayersInUse {
    pub layers: BTreeSet<Digest>,
    /// Errors of unreadable records, which may be about any layer.
    pub unreadable: Vec<StoreError>,
}

impl LayersInUse {
    /// Returns whether a layer is or may be in use.
    pub fn has(&self, layer: &Digest) -> bool {
        !self.unreadable.is_empty() || self.layers.contains(layer)
    }

    fn add(&mut self, path: &Path) -> Result<(), StoreError> {
        match read_record::<LeaseRecord>(path) {
            Ok(record) => self.layers.extend(record.into_iter().flat_map(|record| record.layers)),
            Err(error) if error.is_unreadable() => self.add_unreadable(path, error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn add_unreadable(&mut self, path: &Path, error: StoreError) {
        let source = Box::new(error);
        self.unreadable.push(StoreError::Lease { path: path.to_owned(), source });
    }
}

/// Reservation of layers that are about to be used: they stay until it is dropped or the process
/// dies.
#[derive(Debug)]
#[must_use = "the layers may go as soon as this is dropped"]
pub struct LayerReservation {
    path: PathBuf,
    _file: File,
}

impl Drop for LayerReservation {
    fn drop(&mut self) {
        // A file that stays is no longer locked, and is swept.
        drop(fs::remove_file(&self.path));
    }
}

impl ImageStore {
    /// Keeps the layers of an image for a holder, such as a job, until they are released, and
    /// updates the time of the image's last use. Fails if a layer was removed since the image was
    /// found.
    pub fn lease(&self, holder: &str, image: &Image) -> Result<(), StoreError> {
        let dir = self.leases_dir().join(check(holder)?);
        let _shared = self.share()?;
        self.all_layers(&image.reference, &image.diff_ids)?;
        make_private(&dir)?;
        let record = LeaseRecord { layers: image.diff_ids.clone() };
        write_record(&dir.join(format!("{}.json", image.id.hex())), &record)?;
        self.touch(image)
    }

    /// Releases all leases of a holder. A holder without leases is no error.
    pub fn release(&self, holder: &str) -> Result<(), StoreError> {
        Ok(remove_tree(&self.leases_dir().join(check(holder)?))?)
    }

    /// Returns the holders of leases.
    pub fn holders(&self) -> Result<Vec<String>, StoreError> {
        let mut holders = names(&self.leases_dir())?;
        holders.retain(|name| check(name).is_ok());
        Ok(holders)
    }

    /// Keeps layers, present or not, from being removed while they are looked up, unpacked and made
    /// an image.
    pub fn reserve(&self, diff_ids: &[Digest]) -> Result<LayerReservation, StoreError> {
        let path = self.leases_dir().join(format!("{RESERVED}{:016x}", random_u64()));
        // `kept_layers` needs the exclusive lock, so it sees no reservation without content or lock.
        let _shared = self.share()?;
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .with_path("create", &path)?;
        file.lock().with_path("lock", &path)?;
        let record = LeaseRecord { layers: diff_ids.to_vec() };
        let text = encode(&record);
        let result = file.write_all(&text).with_path("write", &path);
        let reservation = LayerReservation { path, _file: file };
        Ok(result.map(|()| reservation)?)
    }

    /// Removes reservations of dead processes. [`ImageStore::prune`] does so too.
    pub fn sweep_reservations(&self) -> Result<(), StoreError> {
        let has_any = names(&self.leases_dir())?.iter().any(|name| name.starts_with(RESERVED));
        if has_any {
            let _excluded = self.exclude()?;
            self.kept_layers()?;
        }
        Ok(())
    }

    /// Returns the leased and reserved layers, and removes reservations of dead processes.
    ///
    /// Callers hold the exclusive lock: a new reservation has no lock for a moment.
    pub(super) fn kept_layers(&self) -> Result<LayersInUse, StoreError> {
        let mut kept = LayersInUse::default();
        let leases = self.leases_dir();
        for name in names(&leases)? {
            let path = leases.join(&name);
            if name.starts_with(RESERVED) {
                if is_held(&path)? {
                    kept.add(&path)?;
                }
                continue;
            }
            let records = match names(&path) {
                Ok(records) => records,
                // Released meanwhile.
                Err(error) if error.source.kind() == ErrorKind::NotFound => continue,
                Err(error) if error.source.kind() == ErrorKind::NotADirectory => {
                    kept.add_unreadable(&path, error.into());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            for record in records.iter().filter(|name| name.ends_with(".json")) {
                kept.add(&path.join(record))?;
            }
        }
        Ok(kept)
    }
}

/// Returns whether the process of a reservation is alive; if not, removes the reservation.
fn is_held(path: &Path) -> Result<bool, PathError> {
    let mut options = File::options();
    // Opening must not block, whatever the file is.
    let options =
        options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed());
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        // A symbolic link is not ours.
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return remove_tree(path).map(|()| false);
        }
        result => result.with_path("open", path)?,
    };
    match file.try_lock() {
        Ok(()) => remove_tree(path).map(|()| false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(PathError::new("lock", path, error)),
    }
}

fn check(holder: &str) -> Result<&str, StoreError> {
    let is_good = (1..=128).contains(&holder.len())
        && !holder.starts_with('.')
        && holder.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    is_good.then_some(holder).ok_or_else(|| StoreError::Holder { holder: holder.to_owned() })
}
