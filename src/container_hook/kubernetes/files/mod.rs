//! Files between the runner and the containers of a job, where they share no volume.
//!
//! After each exchange both ends have the same, and a [`Record`] of it is kept on the runner. What
//! differs from the record at one end has changed there, and is sent; what is missing there was removed.
//! So what only the other end has changed meanwhile stays as it is.
//!
//! What comes from a container is believed as little as anything else: it is written beneath one
//! directory, within one [`Scope`], in the order that a walk has, and within [`Limits`].

mod error;
mod exchange;
mod get;
mod host;
mod list;
mod plan;
mod put;
mod record;
mod transfer;

pub use error::FilesError;
pub use host::{HostTree, Limits};
pub use list::read;
pub use plan::WorkFiles;
pub use put::put;
pub use record::Record;

#[cfg(test)]
mod tests;
