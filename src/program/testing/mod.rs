//! What the tests of several programs share; the programs themselves have none of it.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[cfg(feature = "program")]
pub mod pages;
#[cfg(feature = "engine-program")]
pub mod settings;
