//! GitLab's Step Runner: runs CI jobs made of steps, served by gRPC on a Unix socket.
//!
//! Bottom up: [`Value`] is a value of expressions; [`document`] parses step files; [`expression`] expands
//! `${{ }}`; [`files`] parses the outputs of steps; [`log`] masks and stores output, and [`redact`] masks
//! results; [`resolve`] loads step files from references; [`builtin`] has the functions of this program;
//! [`engine`] runs a job. [`jobs`] manages many of them, [`service`] serves them on a [`socket`],
//! [`proxy`] forwards its bytes, and [`client`] is the client. [`gitlab_helper`] finds the program of
//! GitLab's whose place ours takes.

pub mod builtin;
pub mod client;
pub mod document;
pub mod engine;
pub mod expression;
pub mod files;
pub mod function_oci;
pub mod gitlab_helper;
mod http2;
pub mod jobs;
pub mod log;
pub mod proxy;
pub mod redact;
pub mod resolve;
pub mod service;
pub mod socket;
pub mod trace;
mod value;
pub mod wire;

pub use value::{Type, Value};
