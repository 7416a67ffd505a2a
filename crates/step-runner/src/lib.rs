//! GitLab's Step Runner: runs CI jobs made of steps, served by gRPC on a Unix socket.
//!
//! Bottom up: [`ExprValue`] is a value of expressions; [`document`] parses step files; [`expression`] expands
//! `${{ }}`; [`files`] parses the outputs of steps; [`log`] masks and stores output, and [`redact`] masks
//! results; [`resolve`] loads step files from references; [`builtin`] has the functions of this program;
//! [`engine`] runs a job. [`jobs`] manages many jobs, [`service`] serves them on a [`socket`], [`proxy`]
//! forwards bytes to it, and [`client`] is the client. [`gitlab_helper`] finds GitLab's helper program,
//! which this program replaces.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod builtin;
pub mod client;
pub mod document;
pub mod engine;
pub mod expression;
pub mod files;
pub mod function_oci;
pub mod gitlab_helper;
mod go_expand;
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

pub use value::{DeclaredType, ExprValue};
