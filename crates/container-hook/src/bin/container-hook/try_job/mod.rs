//! `container-hook try`: a job without GitHub. This program simulates the runner: it creates a runner's
//! directories and calls itself, as a runner does, for each request of a job with one `run:` step. `doctor
//! --probe` runs two such jobs.

mod call;
mod calls;
mod job_log;
mod left;
mod play;
mod probe;
mod request;
mod runner;

pub use play::{TryArgs, TryJobError, TryRequestArgs, run};
pub use probe::probe;
pub use runner::remove_abandoned;
