//! Pulls from real and hostile registries. None of this needs root.

mod cache;
mod content;
mod credentials;
mod interruptions;
mod proof;
mod real;
mod setup;
mod slow;
