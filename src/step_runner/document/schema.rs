//! The JSON Schema of step files.

/// Returns the JSON Schema (draft 2020-12) of step files, for editors.
///
/// It accepts either of the two documents; `#/$defs/spec_document` and `#/$defs/definition` accept one of
/// them.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}
