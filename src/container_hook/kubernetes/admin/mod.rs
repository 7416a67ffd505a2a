//! What administrators ask of a cluster: which pods are ours, what is left of whom, what is missing.

mod access;
mod list;
mod log;
mod preview;
mod prune;

pub use access::{Need, PERMISSIONS, Permission};
pub use list::{JobPod, PodContainer, list};
pub use log::{PodLogLine, containers, log};
pub use preview::{Preview, RunnerPod, inspect, preview};
pub use prune::{Pruned, prune};
