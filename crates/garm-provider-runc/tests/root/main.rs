//! `garm-provider-runc` as called by GARM, with real runc and crun, a real registry and a fake GARM, as root and
//! rootless.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod admin;
mod boot;
mod damage;
mod deletes;
mod detached;
mod failures;
mod growth;
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
