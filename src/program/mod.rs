//! What the programs of this package share, compiled once. It is no part of the library's interface.
//!
//! This is the top layer: it may use all other modules, and no other module uses it. Unlike the rest of the library, it
//! prints, reads the environment and chooses exit codes.
//! A program brings what is its own: its command line, its type of errors ([`exit::Failure`]) and its settings
//! ([`settings_file::FileSettings`]).

#![cfg_attr(not(test), expect(clippy::disallowed_methods, reason = "it is half a program"))]

#[cfg(feature = "program")]
pub mod check;
#[cfg(feature = "engine-program")]
pub mod checks;
#[cfg(feature = "program")]
pub mod completions;
#[cfg(feature = "engine-program")]
pub mod config;
#[cfg(feature = "program")]
pub mod context;
#[cfg(feature = "program")]
pub mod exit;
#[cfg(feature = "program")]
pub mod help;
#[cfg(feature = "engine-program")]
pub mod host;
#[cfg(feature = "engine-program")]
pub mod lines;
#[cfg(feature = "program")]
pub mod man;
#[cfg(any(feature = "engine-program", feature = "nri", feature = "runtime-wrapper"))]
pub mod mistake;
#[cfg(feature = "engine-program")]
pub mod monitor;
#[cfg(feature = "engine-program")]
pub mod paths;
#[cfg(feature = "engine-program")]
pub mod probe;
#[cfg(feature = "engine-program")]
pub mod programs;
#[cfg(feature = "engine-program")]
pub mod progress;
#[cfg(feature = "engine-program")]
pub mod prune;
#[cfg(feature = "engine-program")]
pub mod pulled;
#[cfg(feature = "engine-program")]
pub mod rootless;
#[cfg(feature = "engine-program")]
pub mod sections;
#[cfg(feature = "engine-program")]
pub mod settings_file;
#[cfg(feature = "program")]
pub mod style;
#[cfg(feature = "engine-program")]
pub mod table;
#[cfg(feature = "program")]
pub mod terminal;
#[cfg(feature = "program-tests")]
pub mod testing;
#[cfg(any(feature = "program", feature = "runtime-wrapper"))]
pub mod trace;
