//! The store: images and their unpacked layers on disk, shared by any number of processes.
//!
//! ```text
//! ROOT/                     0700, /var/lib/oci-hooks unless configured otherwise
//!   lock                    held for moments: shared to say what is needed, alone to decide what goes
//!   images/HEX-PLATFORM.json   a record for each name; HEX is of the name, its mtime the last use
//!   layers/ALGORITHM-HEX/   a whole layer, by the digest of its archive (the configuration's diff ID)
//!     tree/                 its files, as overlayfs takes them
//!     layer.json            what is known of it
//!     served/…              which registries gave it, in which repositories and to whom
//!   layers/.tmp-…           a layer that is being unpacked; who does it holds a lock on it
//!   layers/.gone-…          a layer that is being removed
//! RUN/leases/HOLDER/        what HOLDER, such as a job, uses; gone after a reboot as it is
//! RUN/leases/.reserved-…    what a process is about to use, while it holds a lock on the file
//! ```
//!
//! Layers are called by the digest of the archive, not of the blob: so a layer that one registry
//! compressed with gzip, another with zstd, and a build again in its own way, is stored once. That
//! digest is checked for each layer, or an image could smuggle files into another one that names
//! the same layer. Nothing about a layer depends on those below it.
//!
//! The digest of an archive is no secret, and so no permission: a layer that is there becomes part of
//! an image only with a blob that holds it and that the image's registry gives to who wants the image
//! (`served`). Everybody else fetches the blob, or fails to.
//!
//! A layer appears with everything it needs, by one rename. Two processes that want the same blob
//! from the same repository wait for each other; when the first one dies, the second finds the lock
//! free and starts anew, and when the first one gets stuck, the second overtakes it.
//! Whatever a killed process leaves is found by its name or its free lock and removed by
//! [`Store::prune`], or by who needs the name next.
//!
//! Nothing is synced to disk when an image is pulled: that would take longer than the rest of it,
//! for a copy of what the registry still has. Instead a layer's record names the boot that it was
//! unpacked in. During that boot the kernel shows the files as written, on disk or not. After it
//! the layer counts only if a sync was seen ([`Store::settle`], which [`Store::prune`] calls too);
//! otherwise it is unpacked again.

mod error;
mod images;
mod layers;
mod leases;
mod open;
mod prune;
mod served;
mod unpack_lock;

pub use served::{Served, Standing};
pub use unpack_lock::{LayerRequest, LockedLayer};

pub use error::StoreError;
pub use images::{Image, NewImage, Summary};
pub use layers::Layer;
pub use leases::Reservation;
pub use open::{Store, StoreOptions};
pub use prune::{PrunePolicy, Pruned, Usage};

#[cfg(test)]
mod tests;
