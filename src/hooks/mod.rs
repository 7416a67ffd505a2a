//! hooks.d: load hook files, match them against a container, inject what matches.

mod hook;

pub use hook::Hook;
