//! The gate that every text passes before it becomes a hook file.

use std::path::Path;

use super::ManageError;
use crate::hooks::{Definition, LoadOptions, Problem, SchemaOptions};

/// Checks that a consumer takes a text.
pub(super) fn check(
    path: &Path,
    text: &[u8],
    options: &LoadOptions,
) -> Result<Definition, ManageError> {
    let schema = SchemaOptions {
        extension_stages: &options.extension_stages,
        path_check: options.path_check,
    };
    Definition::parse(text, schema).map_err(|fault| {
        ManageError::Invalid(Box::new(Problem {
            path: path.to_owned(),
            location: fault.location,
            source: fault.error,
            fatal: true,
        }))
    })
}
