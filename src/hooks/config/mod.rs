//! A container's `config.json`: the values that hooks are matched against, and the `hooks` object.
//!
//! The document is edited as text. Everything but the added `hooks` is preserved byte for byte:
//! unknown fields, the order of keys, nulls, and the notation of numbers.

pub mod inject;
pub mod read;

pub use inject::InjectOptions;
pub use read::{ConfigDocument, ConfigError};
