//! Leases: who uses which layers, so that nobody removes them.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::images::Image;
use super::open::{Store, names, read_record, remove_file, write_record};
use crate::image::Digest;
use crate::sys::fs::{PathContext as _, unpredictable};
use crate::sys::removal::remove_tree;

const RESERVED: &str = ".reserved-";

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    layers: Vec<Digest>,
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

    /// Keeps layers from being removed, whether they are there yet or not, while they are looked
    /// for, unpacked and made an image.
    pub fn reserve(&self, diff_ids: &[Digest]) -> Result<Reservation, StoreError> {
        let path = self.leases_dir().join(format!("{RESERVED}{:016x}", unpredictable()));
        // Nobody looks at reservations meanwhile, so nobody finds one without content or lock.
        let _shared = self.share()?;
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(&path).at("make", &path)?;
        file.lock().at("lock", &path)?;
        let record = Record { layers: diff_ids.to_vec() };
        let text = serde_json::to_vec(&record).expect("records have text keys alone");
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
    pub(super) fn kept_layers(&self) -> Result<BTreeSet<Digest>, StoreError> {
        let mut kept = BTreeSet::new();
        let leases = self.leases_dir();
        for name in names(&leases)? {
            let path = leases.join(&name);
            if name.starts_with(RESERVED) {
                let file = match File::open(&path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    result => result.at("open", &path)?,
                };
                match file.try_lock() {
                    Ok(()) => remove_file(&path)?,
                    Err(TryLockError::Error(error)) => {
                        return Err(crate::sys::fs::PathError::new("lock", &path, error).into());
                    }
                    Err(TryLockError::WouldBlock) => {
                        kept.extend(self.layers_in(&path)?);
                    }
                }
                continue;
            }
            let records = match names(&path) {
                Ok(records) => records,
                // Released meanwhile.
                Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            for record in records.iter().filter(|name| name.ends_with(".json")) {
                kept.extend(self.layers_in(&path.join(record))?);
            }
        }
        Ok(kept)
    }

    fn layers_in(&self, path: &std::path::Path) -> Result<Vec<Digest>, StoreError> {
        Ok(read_record::<Record>(path)?.map(|record| record.layers).unwrap_or_default())
    }
}

fn check(holder: &str) -> Result<&str, StoreError> {
    let is_good = (1..=128).contains(&holder.len())
        && !holder.starts_with('.')
        && holder.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    is_good.then_some(holder).ok_or_else(|| StoreError::Holder { holder: holder.to_owned() })
}
