//! Bad input: nothing panics, hangs, or takes more than its share of time and memory.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

mod changing;
mod entries;
mod limited;
mod properties;
mod size;
