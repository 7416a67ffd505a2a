//! hooks.d: load hook files, match them against a container, inject what matches.

pub mod capture;
pub mod filter;
mod hook;

pub use hook::Hook;
