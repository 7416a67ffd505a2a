//! Administration of a cluster's jobs: list, logs, prune, preview, permissions.

mod access;
mod list;
mod log;
mod preview;
mod prune;

pub use access::{PERMISSIONS, Permission, PermissionNeed};
pub use list::{JobPod, PodContainer, list};
pub use log::{PodLogLine, containers, log};
pub use preview::{PodPreview, RunnerPod, inspect, preview};
pub use prune::{PrunedObjects, prune};
