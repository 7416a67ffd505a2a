//! Client of the agent, the first process of a job's container: sends it requests in frames over an exec
//! stream.

mod link;
mod session;
mod silence;
mod steps;
#[cfg(test)]
pub mod testing;
mod writer;

pub use link::{AgentLink, FrameReceiver, FrameSender, LinkError};
pub use session::{AgentSession, INSTALLED, LinkFuture, LinkOpener, PROGRAM, STATE, SessionError};
pub use steps::{AgentError, AgentStep, run};
