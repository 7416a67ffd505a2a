//! Waits for a pod, with progress messages and early failures.
//!
//! The pod is polled: many runners lack the permission to watch pods. The answers are interpreted without the
//! cluster ([`observe`]).

mod checks;
pub mod ended;
mod observe;
mod until;

pub use ended::ContainerEnd;
pub use observe::{PodExpectation, PodFault};
pub use until::{
    WaitError, check_services, create, show_log, wait_for_deletion, wait_for_ready_pod,
};
