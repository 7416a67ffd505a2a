//! Exchanges files between the runner and the containers of a job that share no volume.
//!
//! After each exchange both ends have the same files, and the runner keeps an [`ExchangeRecord`] of them. A file that
//! differs from the record at one end has changed there, and is sent; a missing file was removed. So a file
//! that only the other end has changed meanwhile is kept.
//!
//! Containers are untrusted: their files are written only below one directory, within one
//! [`FileScope`](oci_hooks_init::frames::files::FileScope), in the order of a directory walk, and within
//! [`ExchangeLimits`].

mod error;
mod exchange;
mod get;
mod host;
mod plan;
mod put;
mod read;
mod record;
mod transfer;

pub use error::FilesError;
pub use host::{ExchangeLimits, HostTree};
pub use plan::WorkFiles;
pub use put::upload_tree;
pub use read::read;
pub use record::ExchangeRecord;

#[cfg(test)]
mod tests;
