//! A container's `config.json`: what hooks are matched against, and where they go.
//!
//! The document is edited as text. Everything but the `hooks` that are added stays byte for byte as it
//! was: unknown fields, the order of keys, nulls, and numbers however they are written.

mod inject;
mod read;

pub use inject::InjectOptions;
pub use read::{Config, ConfigError};
