//! Tests with mock registries, and with a real one.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod registry;
