//! GitLab's package `proto`.

pub use super::cancel_request::CancelRequest;
pub use super::gitlab::*;
pub use super::run_request::{RunRequest, TIMEOUT};
