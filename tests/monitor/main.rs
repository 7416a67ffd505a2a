//! `hooks::Monitor` and `oci-hooks monitor` against real directories.

#![expect(clippy::unwrap_used, reason = "what cannot go on in a test has failed")]

mod library;
mod links;
mod program;
mod support;
