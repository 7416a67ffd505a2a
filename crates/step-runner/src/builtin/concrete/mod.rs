//! `builtin://concrete`: a whole job of GitLab Runner.
//!
//! The input describes all work: sources, caches and artifacts to fetch, scripts, uploads. GitLab's own
//! program transfers caches and artifacts. A cancellation stops the scripts; `after_script` and uploads
//! still run.

mod artifacts;
mod cleanup;
mod config;
mod context;
mod git_config;
mod go;
mod job;
mod sources;

pub use job::run;
