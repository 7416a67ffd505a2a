//! Unpacking layers: from a compressed archive to a directory that overlayfs takes as it is.
//!
//! A layer is read once, as it comes from the network. One thread reads, checks the digest of the
//! blob and inflates; another checks the digest of the archive, parses it and makes the files. The
//! memory that takes depends neither on the size of the layer nor on the number of its entries.
//!
//! Everything in a layer is hostile. What becomes of the things an archive can hold:
//!
//! - Names are relative to the layer, with or without a leading `/`. One with `..` in it is
//!   rejected. A symbolic link on the way to a file that the same layer holds is followed as in a
//!   container, so that it cannot leave the layer.
//! - An entry replaces what an earlier one of the same layer left at its name; a directory that is
//!   there already only changes its attributes. The layer's own directory stays a directory.
//! - `.wh.NAME` becomes a whiteout of overlayfs (a character device 0:0) and `.wh..wh..opq` makes
//!   its directory opaque, wherever in the archive they stand: both hide what lower layers have,
//!   nothing of the same layer. Other names that start with `.wh.` are rejected; those that start
//!   with `.wh..wh.` are private to old storage drivers and left out.
//! - Owners, modes with setuid, setgid and sticky bits, and modification times are kept. A
//!   container decides by `no_new_privs` what setuid bits are worth; the store can be entered by
//!   root only.
//! - Of extended attributes `user.*` and `security.capability` are kept. Others of `security.*`
//!   belong to the host's own policy, and those of `trusted.*` and `user.overlay.*` would let a
//!   layer give orders to overlayfs: they are left out.
//! - Device nodes and FIFOs are made, as Docker does: nobody but root reaches them in the store,
//!   and in a container the cgroup's device rules decide. In a user namespace nobody can make device
//!   nodes: they are left out.
//! - An owner that the user namespace does not have is an error.
//! - Without subordinate ids all files are the user's own, to read and to write and without setuid and
//!   setgid bits; what the layer says is kept in the attribute `user.oci-hooks.owner`.
//! - Holes of sparse files (GNU's four formats) stay holes.
//!
//! Where readers of archives disagree on what one says, it is rejected: a size in a directory's
//! header, a lone block of zeros before more entries, a name or size for all entries that follow.

mod archive;
mod attributes;
mod error;
mod extract;
mod pax;
mod place;
mod sparse;
mod unpack;

pub use archive::{Archive, Entry, Kind};
pub use extract::Unpacked;
pub use unpack::{Blob, DecoderError, decoder, prove, unpack};

pub use error::{Limit, Limits, UnpackError};
pub use unpack::{Target, unpack_archive};
