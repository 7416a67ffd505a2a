//! Inputs and outputs of the functions that build and publish functions.

use std::collections::BTreeMap;

use super::super::document::{Input, Output, Outputs, Spec};
use super::super::{Type, Value};

/// The archive that `builtin://function/oci/build` writes.
pub(in crate::step_runner) const ARCHIVE: &str = "function-image.tar";

/// Returns what `builtin://function/oci/build` takes and gives.
pub(super) fn build() -> Spec {
    let empty = || Some(Value::Object(BTreeMap::new()));
    spec(
        [
            ("version", Type::String, None),
            ("common", Type::Struct, empty()),
            ("platforms", Type::Struct, empty()),
        ],
        &[("archive", Type::String), ("version", Type::String), ("digest", Type::Struct)],
    )
}

/// Returns what `builtin://function/oci/publish` takes and gives.
pub(super) fn publish() -> Spec {
    spec(
        [
            ("archive", Type::String, Some(Value::String(ARCHIVE.to_owned()))),
            ("to_repository", Type::String, None),
            ("overwrite", Type::Boolean, Some(Value::Bool(false))),
        ],
        &[
            ("registry", Type::String),
            ("repository", Type::String),
            ("tag", Type::String),
            ("tags", Type::Array),
            ("ref", Type::String),
            ("digest", Type::Struct),
        ],
    )
}

fn spec<const N: usize>(
    inputs: [(&str, Type, Option<Value>); N],
    outputs: &[(&str, Type)],
) -> Spec {
    let inputs = inputs.map(|(name, kind, default)| {
        (name.to_owned(), Input { kind, default, sensitive: false, description: None })
    });
    let outputs = outputs.iter().map(|&(name, kind)| {
        (name.to_owned(), Output { kind, default: None, sensitive: false, description: None })
    });
    Spec { inputs: inputs.into(), outputs: Outputs::Declared(outputs.collect()) }
}
