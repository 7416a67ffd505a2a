//! `garm-provider-runc` without running instances; these tests need no root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod admin;
mod calls;

/// Path of the program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_garm-provider-runc");

/// Directory of the golden files.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cli");
