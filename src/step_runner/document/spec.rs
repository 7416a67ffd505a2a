//! The first document of a step file: inputs and outputs.

use super::super::Type;
use super::error::Problem;
use super::foreign;
use super::reader::Reader;
use super::types::{DEFINITION_KEYS, Input, Output, Outputs, Spec};
use crate::yaml::{Node, Value, hint};

/// Keys of an input or output.
const KEYS: [&str; 4] = ["type", "default", "description", "sensitive"];

impl Reader {
    /// Reads the first document, `spec`.
    pub(super) fn spec_document(&mut self, root: &Node) -> Spec {
        if root.is_null() {
            return Spec::default();
        }
        if !matches!(root.value, Value::Map(_)) {
            self.wrong(root, "a mapping with `spec`");
            return Spec::default();
        }
        for field in root.fields() {
            let name = field.name.as_str();
            if DEFINITION_KEYS.contains(&name) {
                let hint = "it belongs in the second document, after a line `---`";
                self.unknown(field, hint.to_owned());
            } else if name != "spec" {
                let hint = match name {
                    "inputs" | "outputs" => format!("write it in `spec`: `spec: {{{name}: …}}`"),
                    _ => foreign::hint(name)
                        .or_else(|| hint(name, &["spec"]))
                        .expect("few are known"),
                };
                self.unknown(field, hint);
            }
        }
        self.key(root, "spec", Self::spec).unwrap_or_default()
    }

    fn spec(&mut self, node: &Node) -> Spec {
        if !self.mapping(node, &["inputs", "outputs"]) {
            return Spec::default();
        }
        let inputs = self.key(node, "inputs", |reader, inputs| reader.named(inputs, Self::input));
        let outputs = self.key(node, "outputs", Self::outputs);
        Spec { inputs: inputs.unwrap_or_default(), outputs: outputs.unwrap_or_default() }
    }

    fn outputs(&mut self, node: &Node) -> Outputs {
        match &node.value {
            Value::Text(text) if text == "delegate" => Outputs::Delegate,
            Value::Map(_) => {
                let output = |reader: &mut Self, node: &Node| {
                    let Input { kind, default, sensitive, description } = reader.input(node);
                    Output { kind, default, sensitive, description }
                };
                Outputs::Declared(self.named(node, output))
            }
            _ => {
                self.wrong(node, "a mapping, or `delegate`");
                Outputs::default()
            }
        }
    }

    fn input(&mut self, node: &Node) -> Input {
        let mut input =
            Input { kind: Type::String, default: None, sensitive: false, description: None };
        if node.is_null() {
            self.missing(node, "`type`");
            return input;
        }
        if !self.mapping(node, &KEYS) {
            return input;
        }
        let kind = self.key(node, "type", Self::kind);
        if kind.is_none() {
            self.missing(node, "`type`");
        }
        if let Some(kind) = kind.flatten() {
            input.kind = kind;
            input.default = self.key(node, "default", |reader, node| {
                let default = reader.value(node);
                if default.kind() != Some(kind) {
                    let found = node.value.kind();
                    reader.report(node, Problem::Default { declared: kind, found });
                }
                default
            });
        }
        input.sensitive = self.key(node, "sensitive", Self::flag).unwrap_or_default();
        input.description = self.key(node, "description", Self::text);
        input
    }

    fn kind(&mut self, node: &Node) -> Option<Type> {
        let name = self.text(node);
        let kind = Type::from_name(&name);
        if kind.is_none() {
            let hint = hint(&name, &Type::ALL.map(Type::name)).expect("few are known");
            self.report(node, Problem::UnknownType { name, hint });
        }
        kind
    }
}
