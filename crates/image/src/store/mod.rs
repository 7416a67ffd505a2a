//! The store: images and their unpacked layers on disk, shared by any number of processes.
//!
//! ```text
//! ROOT/                     0700, /var/lib/oci-hooks unless configured otherwise
//!   lock                    held briefly: shared to add images and leases, exclusive to remove layers
//!   images/HEX.json         record of a name and platform, whose digest is HEX; the mtime is the last use
//!   layers/ALGORITHM-HEX/   complete layer, by its diff ID (digest of the uncompressed archive)
//!     tree/                 files, to be mounted by overlayfs
//!     layer.json            record of the layer
//!     served/…              registries and repositories that served it, and to which logins
//!   layers/.tmp-…           layer being unpacked, locked by the process that does so
//!   layers/.gone-…          layer being removed
//!   unreachable/HEX         registry that could not be reached, whose name has the digest HEX; the mtime is when
//! RUN/leases/HOLDER/        layers in use by HOLDER, such as a job; cleared on reboot, like the holder
//! RUN/leases/.reserved-…    layers that a process is about to use, while it holds a lock on the file
//! ```
//!
//! Layers are named by the digest of the archive, not of the blob: a layer that one registry
//! compressed with gzip, another with zstd, and a build again in its own way, is stored once. The
//! digest of each layer is checked, or an image could smuggle files into another one that names the
//! same layer. A stored layer does not depend on the layers below it.
//!
//! The digest of an archive is no secret, and so grants no access: a stored layer becomes part of
//! an image only with a blob that contains it and that the image's registry serves to the user who
//! pulls (`served`). Otherwise the blob is fetched, or the pull fails.
//!
//! A layer and its record appear at once, by one rename. Processes that want the same blob from the
//! same repository wait for each other: if the first one dies, the second finds the lock free and
//! starts over; if the first one gets stuck, the second overtakes it. Leftovers of killed processes
//! are found by their name or free lock, and removed by [`ImageStore::prune`] or by the next process
//! that needs the name.
//!
//! A pull does not sync to disk: that would take longer than everything else, for a copy of data
//! that the registry still has. Instead, a layer's record names the boot in which it was unpacked.
//! During that boot the kernel shows the files as written, on disk or not. Later the layer counts
//! only if it has been synced ([`ImageStore::sync_file_system`], which [`ImageStore::prune`] calls too); otherwise it
//! is unpacked again.

mod error;
mod images;
mod layers;
mod leases;
mod open;
mod prune;
mod served;
mod unpack_lock;

pub use served::{LayerAccess, ServedBlob};
pub use unpack_lock::{LayerRequest, LockedLayer};

pub use error::StoreError;
pub use images::{Image, ImageSummary, NewImage};
pub use layers::Layer;
pub use leases::LayerReservation;
pub(crate) use open::SILENCE;
pub use open::{ImageStore, StoreOptions};
pub use prune::{PrunePolicy, PruneResult, StoreUsage};

#[cfg(test)]
mod tests;
