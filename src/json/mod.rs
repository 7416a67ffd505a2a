//! JSON as Go's `encoding/json` reads it, with the position of every value.
//!
//! podman and CRI-O are written in Go: what their decoder accepts is the hook file format. The
//! syntax is strict [RFC 8259], but strings may hold invalid UTF-8 and lone surrogates (each
//! becomes U+FFFD), object keys may repeat, and nesting ends at 10 000. [`JsonDocument::parse`] checks
//! the whole text and records the position of each value; callers interpret the values.
//!
//! [RFC 8259]: https://www.rfc-editor.org/rfc/rfc8259

mod document;
mod format;
mod parse;
pub(crate) mod string;

pub use document::{JsonDocument, JsonKind, JsonMember, JsonValue, TextLocation};
pub use parse::{SyntaxError, SyntaxErrorKind};
pub(crate) use string::folds_to;
