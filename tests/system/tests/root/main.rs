//! Tests across programs: documentation, packages, examples. Needs root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod docs;
mod examples;
mod packages;
mod steps_container;
