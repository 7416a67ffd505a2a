//! The JSON schema of step files.

/// Returns the JSON schema (draft 2020-12) of step files, for editors.
///
/// Either of the two documents is valid by it; of one alone, `#/$defs/spec_document` and
/// `#/$defs/definition` are.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}
