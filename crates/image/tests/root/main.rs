//! Tests of layers with devices and owners, which need root.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod layers;
