//! The runner itself: in the image, or downloaded once and kept as a layer.
//!
//! [`locate`] looks into the layers of an image for a runner, and [`user`] for the user that it is
//! to run as. Where there is none, [`choose`] picks the archive for the machine, and [`Runners`]
//! downloads it, checks it, and unpacks it as one more layer, which every later instance gets
//! without download.

mod choose;
mod download;
mod error;
mod locate;
mod runners;
#[cfg(test)]
mod tests;
mod unpack;
mod user;

pub use choose::{choose, forge_of_instance};
pub use download::DownloadEvent;
pub use error::RunnerError;
pub use locate::{Located, locate, locate_in};
pub use runners::{CachedRunner, PrunedRunners, RunnerLayer, RunnerOptions, Runners};
pub use user::{RunnerUser, passwd_with, user};
