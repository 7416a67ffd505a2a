//! Bringing a runner up, without systemd, and staying with it: GARM's sequence of requests, and what
//! is run in between.
//!
//! All requests are made from outside the instance, so what authenticates them never gets in, but
//! for GARM's own script, which has it written in.

mod attend;
mod certificates;
mod credentials;
mod error;
mod gitea;
mod github;
mod guest;
mod mask;
mod output;
mod prepare;
mod release;
mod sequence;
mod spec;
mod status;
#[cfg(test)]
mod tests;

pub use error::{BootError, RunnerFileError};
pub use guest::{Guest, GuestCommand, GuestError, OutputWatcher, Owner, TMPFS};
pub use output::LastLines;
pub use release::OsRelease;
pub use sequence::boot;
pub use spec::{BootSpec, Forge, RunnerSpec};
