//! Rules of the source tree.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod proto;
mod tidy;
