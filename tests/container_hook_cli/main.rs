//! The program `container-hook` as an admin uses it, without containers: these need no root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod admin;
mod arc_shim;
#[path = "../support/completion.rs"]
mod completion;
#[path = "../support/cli.rs"]
mod env;
mod install;
mod pods;
mod requests;
mod template;

/// The program, for [`env`].
const PROGRAM: &str = env!("CARGO_BIN_EXE_container-hook");

/// Where its golden files are.
const DATA: &str = "container-hook/cli";
