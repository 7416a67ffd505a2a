//! The first process of a job's container, from outside: what it is asked for goes in frames through
//! the stream of an exec.

mod link;
mod session;
mod steps;
#[cfg(test)]
pub mod testing;
mod writer;

pub use link::{Link, LinkError, Receiving, Sending};
pub use session::{Opener, PROGRAM, STATE, Session, SessionError};
pub use steps::{AgentError, run};
