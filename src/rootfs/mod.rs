//! Root file systems: the layers of an image put together, with a place for changes.
//!
//! [`mount()`] lays an overlay over the layers. Where the kernel has none to give, the layers are
//! copied, and [`Backing::Copy`] says why. Either way the root file system is `merged` in a directory
//! of the container's own; [`unmount()`] takes it away again, however often. A [`Stack`] looks into
//! layers that are not mounted.

mod mount;
mod stack;

pub use mount::{Backing, Request, Rootfs, RootfsError, UserNamespace, mount, unmount};
pub use stack::{Found, Stack};
