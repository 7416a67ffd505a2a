//! Patterns of hook conditions: regular expressions as Go's `regexp` package understands them.
//!
//! Hook files are written for podman and CRI-O, and there `when.annotations` and `when.commands`
//! are compiled by Go's `regexp`: RE2 syntax in Perl flavour, matched as a search. The manual page
//! `oci-hooks(5)` speaks of POSIX extended regular expressions, which they never were. Engines
//! that look alike differ silently (`\d` and `\w` are ASCII here, `$` is the end of the text only,
//! `[a&&b]` is no intersection), so the syntax and the matching are this module's own:
//!
//! - [`syntax`] parses and refuses what Go refuses, with the offending fragment;
//! - a pattern that is a literal, perhaps anchored, is compared as a string;
//! - any other is compiled, when a text first needs it, to a list of instructions over characters
//!   that runs all alternatives in step, in time linear in the text, without backtracking.
//!
//! General-purpose engines spend most of their effort on searching long texts fast and pay for it
//! when compiling. A hook pattern is matched once or twice, against a short text, so here parsing
//! and compiling cost about as little as one match, and memory stays proportional to the size
//! limit that Go sets.
//!
//! # Where this differs from Go
//!
//! - Sizes and depths are those of the pattern as written. Go merges common prefixes of
//!   alternatives first, and does not measure a plain literal: it may judge differently patterns
//!   of more than three million instructions or close to a thousand levels.
//! - An escaped surrogate such as `\x{d800}` matches nothing. In some patterns Go takes it for
//!   U+FFFD.
//! - Text is UTF-8, so what Go does with invalid bytes does not arise.
//! - Unicode tables are those of the `regex-syntax` crate (Unicode 16); Go's depend on its version
//!   (15 in Go 1.25, 17 in Go 1.27, which knows four more scripts).

mod character_set;
mod compiler;
mod error;
mod literal;
mod matcher;
mod program;
pub mod syntax;
#[cfg(test)]
mod tests;
mod unicode;

pub use error::{PatternError, PatternErrorKind};
pub use matcher::Pattern;
