//! JSON schemas of what people write.

/// A file of settings, as JSON: what `GetConfigJSONSchema` answers.
pub const CONFIG: &str = include_str!("schema/config.json");

/// Extra specs: what `GetExtraSpecsJSONSchema` answers.
pub const EXTRA_SPECS: &str = include_str!("schema/extra-specs.json");
