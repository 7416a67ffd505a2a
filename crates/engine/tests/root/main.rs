//! Containers, bundles and networks: needs root, runc and crun.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod bundle;
mod container;
mod example;
mod network;
