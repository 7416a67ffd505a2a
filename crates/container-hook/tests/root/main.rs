//! Plays GitHub's runner, as root, as ordinary users, and in a cluster.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod cluster;
mod rootless;
mod runner;
