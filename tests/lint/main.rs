//! `oci-hooks lint`: findings on whole files and directories, its formats and fixes.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/acl.rs"]
mod acl;
mod cases;
mod directories;
mod env;
mod fixes;
mod output;
