//! `step-runner` as releases have it, linked statically, in file systems that have nothing for it: no C
//! library and none of its modules, no users, no certificates, no shell. As root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod certificates;
mod names;
mod roots;
mod setup;
#[path = "../support/mod.rs"]
mod support;
