//! `container-hook try`: a job without GitHub. This program plays the runner: it makes the directories of one and
//! calls itself, as a runner does, for each request of a job with one `run:` step. `doctor --probe` has two such jobs.

mod call;
mod calls;
mod job_log;
mod left;
mod play;
mod probe;
mod request;
mod runner;

pub use play::{TryArgs, TryError, TryRequestArgs, run};
pub use probe::probe;
pub use runner::remove_abandoned;
