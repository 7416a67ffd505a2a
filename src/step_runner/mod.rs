//! GitLab's Step Runner: runs CI jobs that are made of steps, asked by gRPC on a Unix socket.
//!
//! From below: a [`Value`] is what expressions are about; [`document`] reads what a step is;
//! [`expression`] replaces `${{ }}`; [`files`] reads what a step gives; [`log`] masks what is written
//! and keeps it.

pub mod document;
pub mod expression;
pub mod files;
pub mod log;
mod value;
pub mod wire;

pub use value::{Type, Value};
