//! The program `oci-hooks`, run as a user would: output, exit codes, files written.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/acl.rs"]
mod acl;
#[path = "../support/completion.rs"]
mod completion;
mod directories;
mod doctor;
mod env;
mod events;
mod explain;
mod inject;
mod library;
mod list;
mod man;
mod manage;
mod migrate;
mod pattern;
mod picture;
mod schema;
mod terminal;
mod validate;
