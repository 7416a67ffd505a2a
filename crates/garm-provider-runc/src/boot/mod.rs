//! Boot of a runner, without systemd: the requests to GARM, the programs run in the instance, and waiting for the
//! runner.
//!
//! All requests are sent from outside the instance, so the token never enters it, except in GARM's own script, which
//! contains the token.

mod agent;
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
mod run;
mod sequence;
mod spec;
mod status;
#[cfg(test)]
mod tests;

pub use agent::{PoolShellError, check as check_agent};
pub use error::{BootError, RunnerFileError};
pub use guest::{Guest, GuestCommand, GuestError, GuestIds, OutputWatcher, TMPFS};
pub use output::LastLines;
pub use release::OsRelease;
pub use sequence::boot;
pub use spec::{BootSpec, Forge, RunnerSpec};
