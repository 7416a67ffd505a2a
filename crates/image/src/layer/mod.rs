//! Unpacking of layers, from compressed archives to directories for overlayfs.
//!
//! A layer is read once, as it arrives from the network. One thread reads, checks the digest of the
//! blob and decompresses; another checks the digest of the archive, parses it and creates the
//! files. Memory use depends neither on the size of the layer nor on the number of its entries.
//!
//! Everything in a layer is untrusted. The content of an archive is handled as follows:
//!
//! - Names are relative to the layer, with or without a leading `/`. Names with `..` are rejected.
//!   A symbolic link in the path of a file is followed as in a container, so that it cannot leave
//!   the layer.
//! - An entry replaces an earlier one of the same layer and name; an existing directory only changes
//!   its attributes. The layer's root stays a directory.
//! - `.wh.NAME` becomes a whiteout of overlayfs (a character device 0:0) and `.wh..wh..opq` makes
//!   its directory opaque, at any position in the archive: both hide content of lower layers, not of
//!   the same layer. Other names that start with `.wh.` are rejected; names that start with
//!   `.wh..wh.` are private to old storage drivers and skipped.
//! - Owners, modes with setuid, setgid and sticky bits, and modification times are kept. In a
//!   container `no_new_privs` decides whether setuid bits take effect; only root can enter the store.
//! - The extended attributes `user.*` and `security.capability` are kept. Other `security.*`
//!   attributes belong to the host's policy, and `trusted.*` and `user.overlay.*` would let a layer
//!   control overlayfs: they are dropped.
//! - Device nodes and FIFOs are created, as Docker does: only root can reach them in the store, and
//!   in a container the cgroup's device rules apply. In a user namespace device nodes cannot be
//!   created: they are skipped.
//! - An owner whose id is not mapped in the user namespace is an error.
//! - Without subordinate ids all files belong to the user, who can read and write them, and have no
//!   setuid and setgid bits; the layer's values are kept in the attribute `user.oci-hooks.owner`.
//! - Holes of sparse files (GNU's four formats) stay holes.
//!
//! Input on which readers of archives disagree is rejected: a size in a directory's header, a lone
//! block of zeros before more entries, a name or size for all following entries.

mod archive;
mod attributes;
mod error;
mod extract;
mod pax;
mod place;
mod sparse;
mod unpack;

pub use archive::{TarArchive, TarEntry, TarEntryKind};
pub use extract::UnpackSummary;
pub use unpack::{LayerBlob, decoder, unpack, verify_blob};

pub use error::{LayerLimit, LayerLimits, UnpackError};
pub use unpack::{UnpackTarget, unpack_archive};
