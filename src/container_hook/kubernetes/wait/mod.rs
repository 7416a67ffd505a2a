//! What becomes of a pod: progress, and failures as soon as the cluster says them.
//!
//! The cluster is asked again and again: to watch pods is a permission that many runners lack. What an
//! answer means is decided without the cluster ([`observe`]).

pub mod ended;
mod observe;
mod until;

pub use ended::ContainerEnd;
pub use observe::Expect;
pub use observe::PodFault;
pub use until::WaitError;
pub use until::{create, until_gone, until_ready};
