//! Fetching without the program `git`: version 2 of git's protocol over HTTP.
//!
//! Crates of gitoxide read packet lines, packs and objects. This module controls requests and credentials,
//! limits of size and time, and all writes to disk.
//!
//! Of a repository, only the files of commits are kept: each fetch receives all files of its commit, in a
//! pack that is removed once they are written.

mod checkout;
mod exchange;
mod fetch;
mod protocol;
mod remote;
mod transfer;

pub use fetch::tree;
