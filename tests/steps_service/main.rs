//! The server of `step-runner`, asked by real gRPC clients over its socket and through its proxy.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod abuse;
mod cancel;
mod client;
mod clients;
mod health;
mod jobs;
mod leaving;
mod library;
mod life;
mod log_format;
mod program;
mod removal;
mod secrets;
mod setup;
mod socket;
mod stalls;
mod steps;
mod submit;
mod variables;
mod vectors;
