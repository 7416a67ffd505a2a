//! GitHub's container hooks (ADR 1891): the runner's requests, carried out.

pub mod aliases;
pub mod options;
pub mod policy;
pub mod request;
pub mod response;
pub mod volumes;
pub mod words;
pub mod worker_log;

mod secret;

pub use secret::Secret;
