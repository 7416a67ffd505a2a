//! JSON schemas of settings and extra specs.

/// Schema of a settings file, the output of `GetConfigJSONSchema`.
pub const CONFIG: &str = include_str!("schema/config.json");

/// Schema of extra specs, the output of `GetExtraSpecsJSONSchema`.
pub const EXTRA_SPECS: &str = include_str!("schema/extra-specs.json");
