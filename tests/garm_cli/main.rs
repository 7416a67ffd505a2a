//! The program `garm-provider-runc` without instances that run: these need no root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod admin;
mod calls;
#[path = "../support/completion.rs"]
mod completion;
#[path = "../support/cli.rs"]
mod env;

/// The program, for [`env`].
const PROGRAM: &str = env!("CARGO_BIN_EXE_garm-provider-runc");

/// Where its golden files are.
const DATA: &str = "garm-provider-runc/cli";
