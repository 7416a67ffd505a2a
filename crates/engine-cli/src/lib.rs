//! Code shared by the programs that run containers: settings files, checks of the host for `doctor`, entering the
//! namespaces of rootless jobs, pull progress. It has no runner protocol, and runs containers only to check the host:
//! each program supplies its settings ([`settings_file::FileSettings`]) and decides what runs.
//!
//! Unlike the libraries, this crate prints, reads the environment and chooses exit codes.

pub mod checks;
pub mod config;
pub mod host;
pub mod lines;
pub mod monitor;
pub mod paths;
pub mod probe;
pub mod programs;
pub mod progress;
pub mod prune;
pub mod pulled;
pub mod rootless;
pub mod sections;
pub mod settings_file;
