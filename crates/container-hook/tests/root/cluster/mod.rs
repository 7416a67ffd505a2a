//! Jobs in a cluster: `container-hook` as GitHub's runner calls it, against a real API server, kubelet,
//! containerd and runc. As root.

mod arc;
mod cancelled;
mod connection;
mod dockerfile;
mod faults;
mod files;
mod image_volumes;
mod images;
mod job;
mod killed;
mod many;
mod restarts;
mod restricted;
mod services;
mod setup;
mod silence;
mod steps;
