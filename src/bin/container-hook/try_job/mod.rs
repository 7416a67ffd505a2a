//! `container-hook try`: a job without GitHub. This program plays the runner: it makes the directories of one and
//! calls itself, as a runner does, for each request of a job with one `run:` step.

mod call;
mod job_log;
mod left;
mod play;
mod request;
mod runner;

pub(crate) use play::{TryArgs, TryError, TryRequestArgs, run};
pub(crate) use runner::remove_abandoned;
