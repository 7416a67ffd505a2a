//! The program and the library as users call them.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod cli;
mod conformance;
mod lint;
mod lint_ci;
mod monitor;
mod robustness;
