//! `builtin://concrete`: a whole job of GitLab Runner.
//!
//! Its input says all that is to be done: sources, caches and artifacts to fetch, scripts, what to store
//! afterwards. Caches and artifacts are the business of GitLab's own program. A cancellation ends the
//! scripts; `after_script` and what stores things run nevertheless.

mod artifacts;
mod cleanup;
mod config;
mod context;
mod git_config;
mod go;
mod job;
mod sources;

pub use job::run;
