//! The hooks in `hooks.d-examples` do what their README says, with real runc and crun.

#[path = "../support/mod.rs"]
mod support;

mod example;
mod observe;
mod podman;
mod refuse;
mod setup;
mod shape;
