//! Removing what nobody needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use super::error::StoreError;
use super::images::{Named, Summary};
use super::leases::Kept;
use super::open::{Store, names, read_record, remove_file};
use crate::image::Digest;
use crate::sys::error::chain;
use crate::sys::fs::PathError;
use crate::sys::lock::FileLock;
use crate::sys::record::NewerRecords;

/// Which images to remove. Layers that no image needs go in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrunePolicy {
    /// Those that nobody used for this long.
    pub unused_for: Option<Duration>,
    /// Those used longest ago, until the layers of the others take no more than this.
    pub max_bytes: Option<u64>,
    /// Whether those go that a newer version of this program recorded, with the layers that nobody else
    /// needs.
    pub newer: NewerRecords,
}

impl PrunePolicy {
    /// Returns the policy for images by age, by size, or by both.
    pub fn new(unused_for: Option<Duration>, max_bytes: Option<u64>) -> Self {
        PrunePolicy { unused_for, max_bytes, newer: NewerRecords::Keep }
    }
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Pruned {
    pub images: Vec<Summary>,
    /// How many layers, theirs and others.
    pub layers: usize,
    /// About how much of the disk became free.
    pub freed_bytes: u64,
    /// Which records of those who need layers cannot be read: as long as there are any, no layer is
    /// removed.
    pub unreadable: Vec<String>,
}

/// What the store takes of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// How many names of images.
    pub images: usize,
    pub layers: usize,
    /// About how much of the disk all layers take.
    pub bytes: u64,
    /// How much of it no image needs, nor anybody who leased it.
    pub unneeded_bytes: u64,
}

impl Store {
    /// Removes images by a policy, layers that nobody needs, and what killed processes left. What
    /// is leased or reserved stays.
    pub fn prune(&self, policy: &PrunePolicy) -> Result<Pruned, StoreError> {
        self.settle()?;
        self.sweep_layers()?;
        let excluded = self.exclude()?;
        self.sweep_images(policy.newer)?;
        let mut images = self.named()?;
        let kept = self.needed(&[])?;
        let sizes = self.sizes()?;
        images.sort_by_key(|image| std::cmp::Reverse(image.summary.used));

        let unreadable = kept.unreadable.iter().map(|error| chain(error)).collect();
        let mut pruned = Pruned { unreadable, ..Pruned::default() };
        let mut counted = BTreeSet::new();
        let mut bytes = 0;
        for image in images {
            let own: Vec<_> = image.diff_ids.iter().filter(|id| !counted.contains(*id)).collect();
            let size: u64 = own.iter().filter_map(|id| sizes.get(id)).sum();
            // An image without layers has nothing to keep them by, nor to win.
            let is_kept = !own.is_empty() && image.diff_ids.iter().all(|id| kept.has(id));
            if is_kept || !is_due(&image, policy, bytes + size) {
                bytes += size;
                counted.extend(image.diff_ids);
            } else {
                remove_file(&image.path)?;
                pruned.images.push(image.summary);
            }
        }
        (pruned.layers, pruned.freed_bytes) = self.remove_layers(excluded, policy.newer)?;
        Ok(pruned)
    }

    /// Returns what the store takes of the disk.
    pub fn usage(&self) -> Result<Usage, StoreError> {
        let _shared = self.share()?;
        let images = self.named()?;
        let needed = self.needed(&images)?;
        let sizes = self.sizes()?;
        let unneeded = sizes.iter().filter(|(id, _)| !needed.has(id));
        Ok(Usage {
            images: images.len(),
            layers: sizes.len(),
            bytes: sizes.values().sum(),
            unneeded_bytes: unneeded.map(|(_, size)| size).sum(),
        })
    }

    /// Removes the layers that nobody needs. Others may go on once it is decided which these are.
    pub(super) fn remove_unneeded(&self, excluded: FileLock) -> Result<(usize, u64), StoreError> {
        self.remove_layers(excluded, NewerRecords::Keep)
    }

    fn remove_layers(
        &self,
        excluded: FileLock,
        newer: NewerRecords,
    ) -> Result<(usize, u64), StoreError> {
        let held = self.kept_layers()?;
        let needed = self.needed(&self.named()?)?;
        let mut gone = Vec::new();
        let mut freed_bytes = 0;
        for (digest, dir) in self.layer_dirs()? {
            let layer = match self.layer(&digest) {
                Err(error) if error.is_newer() && newer == NewerRecords::Keep => continue,
                // An image that needs it cannot be used with it, and is pulled again.
                Err(error) if error.is_newer() && held.has(&digest) => continue,
                Err(error) if error.is_newer() => None,
                layer => layer?,
            };
            // One that cannot be used is in nobody's way, but takes space.
            if layer.is_some() && needed.has(&digest) {
                continue;
            }
            freed_bytes += layer.map_or(0, |layer| layer.size_bytes);
            gone.extend(self.take_away(&dir)?);
        }
        drop(excluded);
        for dir in &gone {
            self.trash().remove(dir)?;
        }
        Ok((gone.len(), freed_bytes))
    }

    /// Returns the layers that images, leases or reservations name.
    fn needed(&self, images: &[Named]) -> Result<Kept, StoreError> {
        let mut needed = self.kept_layers()?;
        needed.unreadable.extend(self.newer_images()?);
        needed.layers.extend(images.iter().flat_map(|image| image.diff_ids.iter().cloned()));
        Ok(needed)
    }

    fn sizes(&self) -> Result<BTreeMap<Digest, u64>, StoreError> {
        let mut sizes = BTreeMap::new();
        for (digest, _) in self.layer_dirs()? {
            let layer = self.readable_layer(&digest)?;
            sizes.insert(digest, layer.map_or(0, |layer| layer.size_bytes));
        }
        Ok(sizes)
    }

    /// Removes records that cannot be read, as after a power cut, and those that were not finished.
    fn sweep_images(&self, newer: NewerRecords) -> Result<(), PathError> {
        let images = self.images_dir();
        for name in names(&images)? {
            let path = images.join(&name);
            let is_good = name.ends_with(".json")
                && !name.starts_with('.')
                && !matches!(
                    read_record::<serde_json::Value>(&path),
                    Err(error) if error.is_unreadable()
                        && (!error.is_newer() || newer == NewerRecords::Remove)
                );
            if !is_good {
                self.trash().remove(&path)?;
            }
        }
        Ok(())
    }
}

fn is_due(image: &Named, policy: &PrunePolicy, bytes: u64) -> bool {
    let unused = SystemTime::now().duration_since(image.summary.used).unwrap_or_default();
    policy.unused_for.is_some_and(|limit| unused >= limit)
        || policy.max_bytes.is_some_and(|limit| bytes > limit)
}
