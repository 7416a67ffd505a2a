//! The program `container-hook` as an administrator uses it, without containers and without root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod admin;
mod arc_shim;
mod install;
mod pods;
mod requests;
mod template;

/// Path of the program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_container-hook");

/// Directory of the golden files.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cli");
