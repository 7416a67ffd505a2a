//! hooks.d: load hook files, match them against a container, inject what matches.

mod hook;
pub mod json;

pub use hook::Hook;
