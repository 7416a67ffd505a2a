//! GitLab's Step Runner: runs CI jobs that are made of steps, asked by gRPC on a Unix socket.
//!
//! From below: a [`Value`] is what expressions are about; [`document`] reads what a step is;
//! [`expression`] replaces `${{ }}`; [`files`] reads what a step gives; [`log`] masks what is written
//! and keeps it; [`resolve`] finds the files of steps; [`engine`] runs them.

pub mod document;
pub mod engine;
pub mod expression;
pub mod files;
pub mod log;
pub mod resolve;
pub mod trace;
mod value;
pub mod wire;

pub use value::{Type, Value};
