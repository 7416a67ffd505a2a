//! `garm-provider-runc` as GARM calls it, with real runc and crun, a real registry and a server that
//! plays GARM. As root, and as users who are not.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod boot;
mod deletes;
mod detached;
mod failures;
mod image;
mod killed;
mod life;
mod limits;
mod machine;
mod parallel;
mod probe;
mod prune;
mod recorded;
mod removal;
mod rootless;
mod secrets;
mod setup;
mod soak;
mod stopped;
mod truth;
mod users;
