//! What becomes of a pod: progress, and failures as soon as the cluster says them.

pub(super) mod ended;

pub use ended::ContainerEnd;
