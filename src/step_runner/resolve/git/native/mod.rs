//! Fetching without the program `git`: version 2 of git's protocol by HTTP.
//!
//! Packet lines, packs and objects are read by crates of gitoxide. What is sent to whom, how much is taken
//! and how long it may last is decided here, and so is what is written to disk.
//!
//! Nothing of a repository is kept but the files of commits: each fetch brings all files of its commit, in
//! a pack that is removed once they are written.

mod checkout;
mod exchange;
mod fetch;
mod protocol;
mod remote;
mod transfer;

pub use fetch::tree;
