//! GitLab's Step Runner: runs CI jobs that are made of steps, asked by gRPC on a Unix socket.
//!
//! From below: a [`Value`] is what expressions are about; [`document`] reads what a step is;
//! [`expression`] replaces `${{ }}`; [`files`] reads what a step gives; [`log`] masks what is written
//! and keeps it; [`resolve`] finds the files of steps; [`engine`] runs a job. [`jobs`] keeps many of
//! them, [`service`] offers them on a [`socket`], [`proxy`] carries its bytes, and [`client`] asks for
//! them.

pub mod client;
pub mod document;
pub mod engine;
pub mod expression;
pub mod files;
pub mod jobs;
pub mod log;
pub mod proxy;
pub mod resolve;
pub mod service;
pub mod socket;
pub mod trace;
mod value;
pub mod wire;

pub use value::{Type, Value};
