//! What the functions take and give.

use std::collections::BTreeMap;

use super::super::document::{Input, Output, Outputs, Spec};
use super::super::{Type, Value};
use super::inputs::ARCHIVE;
use super::run::Function;

impl Function {
    /// Returns the inputs and outputs of the function.
    pub fn spec(self) -> Spec {
        let empty = || Some(Value::Object(BTreeMap::new()));
        let (inputs, outputs) = match self {
            Function::Build => (
                vec![
                    ("version", Type::String, None),
                    ("common", Type::Struct, empty()),
                    ("platforms", Type::Struct, empty()),
                ],
                vec![
                    ("archive", Type::String),
                    ("version", Type::String),
                    ("digest", Type::Struct),
                ],
            ),
            Function::Publish => (
                vec![
                    ("archive", Type::String, Some(Value::String(ARCHIVE.to_owned()))),
                    ("to_repository", Type::String, None),
                    ("overwrite", Type::Boolean, Some(Value::Bool(false))),
                ],
                vec![
                    ("registry", Type::String),
                    ("repository", Type::String),
                    ("tag", Type::String),
                    ("tags", Type::Array),
                    ("ref", Type::String),
                    ("digest", Type::Struct),
                ],
            ),
        };
        let inputs = inputs.into_iter().map(|(name, kind, default)| {
            (name.to_owned(), Input { kind, default, sensitive: false, description: None })
        });
        let outputs = outputs.into_iter().map(|(name, kind)| {
            (name.to_owned(), Output { kind, default: None, sensitive: false, description: None })
        });
        Spec { inputs: inputs.collect(), outputs: Outputs::Declared(outputs.collect()) }
    }
}
