//! Jobs in containers for users who are not root and have no sudo, with subordinate ids and without, and
//! for root beside them: `container-hook` as the user installs it, with real runc and crun.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/busybox.rs"]
mod busybox;
#[path = "../support/mod.rs"]
mod support;

mod beside;
mod builds;
mod cgroups;
mod containers;
mod doctor;
mod escapes;
mod files;
mod jobs;
mod killed;
mod machine;
mod namespace;
mod nesting;
mod pod;
mod probe;
mod records;
mod setup;
mod stopped;
mod storage;
mod trouble;
mod try_job;
mod uplink;
mod volumes;
