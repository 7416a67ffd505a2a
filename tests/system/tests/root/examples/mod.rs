//! The hooks in `hooks.d-examples` behave as their README describes, with real runc and crun.

mod example;
mod observe;
mod podman;
mod refuse;
mod setup;
mod shape;
