//! The runner: in the image, or downloaded once and cached as a layer.
//!
//! [`locate`] searches the layers of an image for a runner, and [`user`] finds its user. For an image without a
//! runner, [`choose`] selects the archive for the machine, and [`RunnerCache`] downloads, verifies and unpacks it
//! as another layer, which later instances reuse.

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
pub use error::RunnerError;
pub use locate::{LocatedRunner, locate, locate_in};
pub use runners::{PrunedRunners, RunnerCache, RunnerDownloadOptions, RunnerLayer};
pub use user::{RunnerUser, passwd_with, user};
