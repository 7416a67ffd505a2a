//! Leases: the layers that a process uses, which no other process removes.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::images::Image;
use super::open::{Store, names, read_record, write_record};
use crate::image::Digest;
use crate::sys::fs::{PathContext as _, PathError, random_u64};
use crate::sys::record::encode;
use crate::sys::removal::remove_tree;

const RESERVED: &str = ".reserved-";

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    layers: Vec<Digest>,
}

/// The layers that somebody needs.
#[derive(Debug, Default)]
pub struct Kept {
    pub layers: BTreeSet<Digest>,
    /// Why it cannot be told what else is needed.
    pub unreadable: Vec<StoreError>,
}

impl Kept {
    /// Returns whether somebody needs a layer, or may need it.
    pub fn has(&self, layer: &Digest) -> bool {
        !self.unreadable.is_empty() || self.layers.contains(layer)
    }

    fn add(&mut self, path: &Path) -> Result<(), StoreError> {
        match read_record::<Record>(path) {
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

/// Layers that are about to be used: they stay until this is dropped or the process dies.
#[derive(Debug)]
#[must_use = "the layers may go as soon as this is dropped"]
pub struct Reservation {
    path: PathBuf,
    _file: File,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // One that stays has no lock any more, and is swept.
        drop(fs::remove_file(&self.path));
    }
}

impl Store {
    /// Keeps an image's layers for somebody, such as a job, until they are released, and notes
    /// that the image is used. Fails if a layer was removed since the image was found.
    pub fn lease(&self, holder: &str, image: &Image) -> Result<(), StoreError> {
        let dir = self.leases_dir().join(check(holder)?);
        let _shared = self.share()?;
        self.all_layers(&image.reference, &image.diff_ids)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).at("make", &dir)?;
        let record = Record { layers: image.diff_ids.clone() };
        write_record(&dir.join(format!("{}.json", image.id.hex())), &record)?;
        self.touch(image)
    }

    /// Gives back everything that somebody leased. Nothing leased is no error.
    pub fn release(&self, holder: &str) -> Result<(), StoreError> {
        Ok(remove_tree(&self.leases_dir().join(check(holder)?))?)
    }

    /// Returns who has leased something.
    pub fn holders(&self) -> Result<Vec<String>, StoreError> {
        let mut holders = names(&self.leases_dir())?;
        holders.retain(|name| check(name).is_ok());
        Ok(holders)
    }

    /// Keeps layers from being removed, whether they are there yet or not, while they are looked
    /// for, unpacked and made an image.
    pub fn reserve(&self, diff_ids: &[Digest]) -> Result<Reservation, StoreError> {
        let path = self.leases_dir().join(format!("{RESERVED}{:016x}", random_u64()));
        // Nobody looks at reservations meanwhile, so nobody finds one without content or lock.
        let _shared = self.share()?;
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(&path).at("make", &path)?;
        file.lock().at("lock", &path)?;
        let record = Record { layers: diff_ids.to_vec() };
        let text = encode(&record);
        let result = file.write_all(&text).at("write", &path);
        let reservation = Reservation { path, _file: file };
        Ok(result.map(|()| reservation)?)
    }

    /// Removes what dead processes reserved. [`Store::prune`] does so too.
    pub fn sweep_reservations(&self) -> Result<(), StoreError> {
        let has_any = names(&self.leases_dir())?.iter().any(|name| name.starts_with(RESERVED));
        if has_any {
            let _excluded = self.exclude()?;
            self.kept_layers()?;
        }
        Ok(())
    }

    /// Returns the layers that are leased or reserved, and removes what dead processes reserved.
    ///
    /// To be called while nobody can add any.
    pub(super) fn kept_layers(&self) -> Result<Kept, StoreError> {
        let mut kept = Kept::default();
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

/// Returns whether somebody lives who reserved something; if not, that is removed.
fn is_held(path: &Path) -> Result<bool, PathError> {
    let mut options = File::options();
    // Whatever it is, it is not waited for.
    let options =
        options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed());
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        // Nobody of us made it.
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return remove_tree(path).map(|()| false);
        }
        result => result.at("open", path)?,
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
