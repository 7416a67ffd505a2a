//! What the programs that run containers have in common.
//!
//! Each includes it with its own `cli`, `error`, `settings` and `style` beside it.

pub(crate) mod checks;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod host;
pub(crate) mod lines;
mod mistake;
pub(crate) mod monitor;
pub(crate) mod progress;
pub(crate) mod pulled;
pub(crate) mod read;
pub(crate) mod relayed;
pub(crate) mod sections;
pub(crate) mod set_aside;
pub(crate) mod table;
