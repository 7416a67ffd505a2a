//! Commands for a cluster, where jobs are pods.

mod connection;
mod doctor;
mod logs;
mod prune;
mod ps;
mod template;

pub(crate) use doctor::run as doctor;
pub(crate) use logs::run as logs;
pub(crate) use prune::run as prune;
pub(crate) use ps::run as ps;
pub(crate) use template::run as template;
