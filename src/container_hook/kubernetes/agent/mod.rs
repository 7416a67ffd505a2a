//! The first process of a job's container, from outside: what it is asked for goes in frames through
//! the stream of an exec.

mod link;
mod session;
mod steps;
#[cfg(test)]
pub(super) mod testing;
mod writer;

pub(super) use link::{Link, LinkError, Receiving, Sending};
pub(super) use session::{Opener, PROGRAM, STATE, Session, SessionError};
pub(super) use steps::{AgentError, run};
