//! Safe access to files that other users can change, locks, versioned records, and child processes with deadlines. The
//! crate knows nothing about containers, mounts nothing and needs no privileges.
//!
//! [`beneath`] opens paths below a directory and follows no link out of it; [`fs`] reads files up to a size limit
//! and replaces files atomically; [`lock`] takes locks and names the process that holds one. [`process`] runs programs
//! with a deadline and an output limit.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod append;
pub mod beneath;
pub mod descent;
pub mod error;
pub mod find;
pub mod fs;
pub mod lock;
pub mod process;
pub mod quantity;
pub mod record;
pub mod retry;
pub mod rollback;
pub mod spawn;
pub mod spelling;
pub mod text;
