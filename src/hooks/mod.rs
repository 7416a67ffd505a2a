//! hooks.d: load hook files, match them against a container, inject what matches.

mod hook;
pub mod pattern;

pub use hook::Hook;
pub use pattern::{Pattern, PatternError};
