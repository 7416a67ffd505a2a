//! Commands for a cluster, where jobs are pods.

mod connection;
mod doctor;
mod logs;
mod prune;
mod ps;
mod template;

pub use doctor::run as doctor;
pub use logs::run as logs;
pub use prune::run as prune;
pub use ps::run as ps;
pub use template::{preview, run as template};
