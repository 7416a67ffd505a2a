//! Jobs in a cluster as GitHub's runner has them run: `container-hook` as the runner calls it, against a real
//! API server, kubelet, containerd and runc. As root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod arc;
mod cancelled;
mod connection;
mod faults;
mod files;
mod images;
mod job;
mod killed;
mod many;
mod proxy;
mod restarts;
mod restricted;
mod services;
mod setup;
mod steps;
