//! The program `container-hook` as an admin uses it, without containers: these need no root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod admin;
mod env;
mod install;
mod requests;
mod template;
