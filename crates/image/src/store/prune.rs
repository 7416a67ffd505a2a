//! Removal of unneeded images and layers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathError, remove_if_there};
use oci_hooks_files::lock::FileLock;
use oci_hooks_files::record::NewerRecords;

use super::error::StoreError;
use super::images::{ImageSummary, NamedImage};
use super::leases::LayersInUse;
use super::open::{ImageStore, names, read_record};
use crate::Digest;

/// Policy for removing images. Unneeded layers are removed in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrunePolicy {
    /// Images unused for this long are removed.
    pub unused_for: Option<Duration>,
    /// Least recently used images are removed until the layers of the others take no more than
    /// this.
    pub max_bytes: Option<u64>,
    /// Handling of images that a newer version of this program recorded, and of their layers.
    pub newer: NewerRecords,
}

impl PrunePolicy {
    /// Returns the policy for images by age, by size, or by both.
    pub fn new(unused_for: Option<Duration>, max_bytes: Option<u64>) -> Self {
        PrunePolicy { unused_for, max_bytes, newer: NewerRecords::Keep }
    }
}

/// Result of pruning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PruneResult {
    pub images: Vec<ImageSummary>,
    /// Number of removed layers, including those that no removed image had.
    pub layers: usize,
    /// Size of the removed layers, and of removed leftovers of killed processes.
    pub freed_bytes: u64,
    /// Unreadable records of leases, reservations and images: while there are any, layers are
    /// removed only if they are corrupt, or were not synced before a reboot.
    pub unreadable: Vec<String>,
}

/// Images that a policy removes, and images that it keeps.
struct PruneSelection {
    due: Vec<NamedImage>,
    left: Vec<NamedImage>,
    /// Records of leases, reservations and images that cannot be read.
    unreadable: Vec<String>,
}

/// Disk usage of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    pub images: usize,
    pub layers: usize,
    /// Approximate disk usage of all layers.
    pub bytes: u64,
    /// Part of `bytes` that no image, lease or reservation needs.
    pub unneeded_bytes: u64,
}

impl ImageStore {
    /// Removes images by a policy, unneeded layers, and leftovers of killed processes. Leased and
    /// reserved layers stay.
    pub fn prune(&self, policy: &PrunePolicy) -> Result<PruneResult, StoreError> {
        self.sync_file_system()?;
        let left_bytes = self.sweep_layers()?;
        let excluded = self.exclude()?;
        self.sweep_images(policy.newer)?;
        let PruneSelection { due, unreadable, .. } = self.select(policy)?;
        let mut pruned = PruneResult { unreadable, ..PruneResult::default() };
        for image in due {
            remove_if_there(&image.path)?;
            pruned.images.push(image.summary);
        }
        (pruned.layers, pruned.freed_bytes) = self.remove_layers(excluded, policy.newer)?;
        pruned.freed_bytes += left_bytes;
        Ok(pruned)
    }

    /// Returns what [`prune`](Self::prune) would remove, without leftovers of killed processes.
    pub fn preview_prune(&self, policy: &PrunePolicy) -> Result<PruneResult, StoreError> {
        let _excluded = self.exclude()?;
        let PruneSelection { due, left, unreadable } = self.select(policy)?;
        let removable = self.removable_layers(&left, policy.newer)?;
        Ok(PruneResult {
            images: due.into_iter().map(|image| image.summary).collect(),
            layers: removable.len(),
            freed_bytes: removable.iter().map(|(_, size)| *size).sum(),
            unreadable,
        })
    }

    /// Divides the images into those to remove and those to keep, each the most recently used
    /// first.
    fn select(&self, policy: &PrunePolicy) -> Result<PruneSelection, StoreError> {
        let mut images = self.named_images()?;
        let kept = self.needed_layers(&[], policy.newer)?;
        let sizes = self.sizes()?;
        images.sort_by_key(|image| std::cmp::Reverse(image.summary.used));

        let unreadable = kept.unreadable.iter().map(|error| chain(error)).collect();
        let mut selection = PruneSelection { due: Vec::new(), left: Vec::new(), unreadable };
        let mut counted = BTreeSet::new();
        let mut bytes = 0;
        for image in images {
            let own: Vec<_> = image.diff_ids.iter().filter(|id| !counted.contains(*id)).collect();
            let size: u64 = own.iter().filter_map(|id| sizes.get(id)).sum();
            // An image whose layers all belong to others is not kept by leases, and frees no space.
            let is_kept = !own.is_empty() && image.diff_ids.iter().all(|id| kept.has(id));
            if is_kept || !is_due(&image, policy, bytes + size) {
                bytes += size;
                counted.extend(image.diff_ids.iter().cloned());
                selection.left.push(image);
            } else {
                selection.due.push(image);
            }
        }
        Ok(selection)
    }

    /// Returns the disk usage of the store.
    pub fn usage(&self) -> Result<StoreUsage, StoreError> {
        let _excluded = self.exclude()?;
        let images = self.named_images()?;
        let needed = self.needed_layers(&images, NewerRecords::Keep)?;
        let sizes = self.sizes()?;
        let unneeded = sizes.iter().filter(|(id, _)| !needed.has(id));
        Ok(StoreUsage {
            images: images.len(),
            layers: sizes.len(),
            bytes: sizes.values().sum(),
            unneeded_bytes: unneeded.map(|(_, size)| size).sum(),
        })
    }

    /// Removes unneeded layers, and returns their number and size. Releases the lock once the
    /// layers are renamed, before their files are removed.
    pub(super) fn remove_unneeded(&self, excluded: FileLock) -> Result<(usize, u64), StoreError> {
        self.remove_layers(excluded, NewerRecords::Keep)
    }

    fn remove_layers(
        &self,
        excluded: FileLock,
        newer: NewerRecords,
    ) -> Result<(usize, u64), StoreError> {
        let removable = self.removable_layers(&self.named_images()?, newer)?;
        let mut gone = Vec::new();
        for (dir, _) in &removable {
            gone.extend(self.rename_for_removal(dir)?);
        }
        drop(excluded);
        for dir in &gone {
            self.trash().remove(dir)?;
        }
        Ok((gone.len(), removable.iter().map(|(_, size)| *size).sum()))
    }

    /// Returns directory and size of each layer that cannot be used, or that none of these images, no
    /// lease and no reservation needs.
    fn removable_layers(
        &self,
        images: &[NamedImage],
        newer: NewerRecords,
    ) -> Result<Vec<(PathBuf, u64)>, StoreError> {
        let held = self.kept_layers()?;
        let needed = self.needed_layers(images, newer)?;
        let mut removable = Vec::new();
        for (digest, dir) in self.layer_dirs()? {
            let layer = match self.layer(&digest) {
                Err(error) if error.is_newer() && newer == NewerRecords::Keep => continue,
                // Images that need the layer cannot use it, and are pulled again.
                Err(error) if error.is_newer() && held.has(&digest) => continue,
                Err(error) if error.is_newer() => None,
                layer => layer?,
            };
            // An unusable layer does no harm, but takes space.
            if layer.is_none() || !needed.has(&digest) {
                removable.push((dir, layer.map_or(0, |layer| layer.size_bytes)));
            }
        }
        Ok(removable)
    }

    /// Returns the layers of images, leases and reservations; all layers, if images of newer versions
    /// are kept and there are some.
    fn needed_layers(
        &self,
        images: &[NamedImage],
        newer: NewerRecords,
    ) -> Result<LayersInUse, StoreError> {
        let mut needed = self.kept_layers()?;
        if newer == NewerRecords::Keep {
            needed.unreadable.extend(self.newer_images()?);
        }
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

    /// Removes corrupt image records, as after a power cut, and unfinished ones. `newer` decides on
    /// records that a newer version of this program wrote.
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

fn is_due(image: &NamedImage, policy: &PrunePolicy, bytes: u64) -> bool {
    let unused = SystemTime::now().duration_since(image.summary.used).unwrap_or_default();
    policy.unused_for.is_some_and(|limit| unused >= limit)
        || policy.max_bytes.is_some_and(|limit| bytes > limit)
}
