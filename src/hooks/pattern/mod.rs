//! Patterns of hook conditions: regular expressions as Go's `regexp` package understands them.
//!
//! Hook files are written for podman and CRI-O, which compile `when.annotations` and
//! `when.commands` with Go's `regexp`: RE2 syntax in Perl flavour, matched as a search. The manual
//! page `oci-hooks(5)` wrongly calls the patterns POSIX extended regular expressions. Similar
//! engines differ silently (`\d` and `\w` are ASCII here, `$` is the end of the text only, `[a&&b]`
//! is no intersection), so this module has its own parser, and translates patterns for the `regex`
//! crate:
//!
//! - [`syntax`] parses patterns, and rejects the patterns that Go rejects, with the offending
//!   fragment;
//! - a pattern that is a literal, perhaps anchored, is compared as a string, and so are the
//!   literals at the start, at the end or inside of other patterns: most texts need no more;
//! - other patterns are translated to the tree of `regex-syntax`, which prints it as a pattern of
//!   the `regex` crate. This regular expression is compiled when a text first needs it, and matches
//!   in time linear in the text.
//!
//! Nearly all texts are ASCII. For these the pattern is compiled without non-ASCII characters,
//! which takes a tenth of the time; the first text with other characters compiles it again.
//!
//! # Where this differs from Go
//!
//! - Size and depth are measured on the pattern as written. Go first merges common prefixes of
//!   alternatives, and does not measure a plain literal: Go may decide differently on patterns of
//!   more than three million instructions or close to a thousand levels.
//! - Go counts a class as one instruction. This module also counts the states that match the UTF-8
//!   sequences of its characters, up to a million: 3000 `\pL`, 130 000 `.` or `[^/]`, or 520 000
//!   `é` in one pattern are not too large. Within both limits, compiling takes at most about 600 MB
//!   and two seconds.
//! - An escaped surrogate such as `\x{d800}` matches nothing. In some patterns Go reads it as U+FFFD.
//! - Text is UTF-8, so Go's handling of invalid bytes does not matter.
//! - Unicode tables are those of the `regex-syntax` crate (Unicode 16); Go's depend on its version
//!   (15 in Go 1.25, 17 in Go 1.27, which knows four more scripts).

mod error;
mod literal;
mod matcher;
pub mod syntax;
#[cfg(test)]
mod tests;
mod translate;

pub use error::{PatternError, PatternErrorKind};
pub use matcher::Pattern;
