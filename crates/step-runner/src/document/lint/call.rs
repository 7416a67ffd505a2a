//! Checks of step calls: the called step exists, and gets the inputs that it declares.

use std::path::PathBuf;

use oci_hooks_files::fs::read_bounded;
use oci_hooks_yaml::{YamlNode, YamlValue, hint};

use super::super::super::expression::is_dynamic;
use super::super::super::value::DeclaredType;
use super::super::reader::{documents, read};
use super::super::types::{BuiltinFunction, MAX_BYTES, STEP_FILE_NAMES, StepReference, StepSpec};
use super::{Lint, LintSeverity};

impl Lint<'_> {
    /// Checks that a built-in or local step exists, and that the call of a local step passes the
    /// inputs which it declares.
    pub(super) fn call(&mut self, step: &YamlNode, reference: &YamlNode) {
        let YamlValue::Text(text) = &reference.value else { return };
        match StepReference::parse(text) {
            Ok(StepReference::Builtin { path }) => self.builtin(reference, &path.join("/")),
            Ok(StepReference::Local { path, filename }) => {
                if let Some(spec) = self.local_spec(reference, &path, filename) {
                    self.call_inputs(step, reference, &spec);
                }
            }
            _ => {}
        }
    }

    fn builtin(&mut self, reference: &YamlNode, name: &str) {
        if BuiltinFunction::NAMES.contains(&name) {
            return;
        }
        let message = format!("there is no built-in function `{name}`");
        self.add(reference.origin.position, LintSeverity::Error, message).hint =
            hint(name, &BuiltinFunction::NAMES);
    }

    /// Returns the `spec` of a local step file; `None` if the file is missing or invalid, or its
    /// directory is unknown. Reports a missing file, but no errors in the file.
    fn local_spec(
        &mut self,
        reference: &YamlNode,
        path: &[String],
        filename: Option<String>,
    ) -> Option<StepSpec> {
        let dir = self.dir?.join(path.iter().collect::<PathBuf>());
        // Without `.` between its names.
        let dir: PathBuf = dir.components().collect();
        let candidates = match &filename {
            Some(name) => vec![name.as_str()],
            None => STEP_FILE_NAMES.to_vec(),
        };
        let found = candidates.iter().map(|name| dir.join(name)).find(|file| file.is_file());
        let Some(file) = found else {
            let message = format!("{} not found in {}", candidates.join(" or "), dir.display());
            self.add(reference.origin.position, LintSeverity::Error, message);
            return None;
        };
        let text = String::from_utf8(read_bounded(&file, MAX_BYTES).ok()?).ok()?;
        let (spec, definition) = documents(&text).ok()?;
        let (file, problems) = read(&spec, &definition);
        problems.is_empty().then_some(file.spec)
    }

    fn call_inputs(&mut self, step: &YamlNode, reference: &YamlNode, spec: &StepSpec) {
        let given = match step.get("inputs").map(|inputs| &inputs.value) {
            None | Some(YamlValue::Null) => &[][..],
            Some(YamlValue::Map(fields)) => fields,
            // The reader reports it.
            Some(_) => return,
        };
        let known: Vec<&str> = spec.inputs.keys().map(String::as_str).collect();
        for field in given {
            let Some(input) = spec.inputs.get(&field.name) else {
                let message = format!("the step has no input `{}`", field.name);
                self.add(field.origin.position, LintSeverity::Error, message).hint =
                    hint(&field.name, &known);
                continue;
            };
            if let Some(expected) = self.mismatch(input.kind, &field.node) {
                let message = format!("input `{}` has type {}: {expected}", field.name, input.kind);
                self.add(field.node.origin.position, LintSeverity::Warning, message);
            }
        }
        let is_given = |name: &str| given.iter().any(|field| field.name == name);
        for (name, input) in &spec.inputs {
            if input.default.is_none() && !is_given(name) {
                let message = format!("the step requires the input `{name}`");
                self.add(reference.origin.position, LintSeverity::Error, message);
            }
        }
    }

    /// Describes a value that is not of the declared type, for the end of a message. Returns `None`
    /// for a value of the type, for null, and for expressions, whose type is unknown.
    fn mismatch(&self, kind: DeclaredType, node: &YamlNode) -> Option<String> {
        let found = match (&node.value, kind) {
            (YamlValue::Null, _)
            | (YamlValue::Text(_), DeclaredType::String)
            | (YamlValue::Number(_), DeclaredType::Number)
            | (YamlValue::Bool(_), DeclaredType::Boolean)
            | (YamlValue::List(_), DeclaredType::Array)
            | (YamlValue::Map(_), DeclaredType::Struct) => return None,
            (YamlValue::Text(text), _) if is_dynamic(text) => return None,
            (YamlValue::Number(_) | YamlValue::Bool(_), DeclaredType::String) => {
                return Some(format!("write \"{}\"", self.scalar_at(node)));
            }
            (value, _) => value.kind(),
        };
        Some(format!("got {found}"))
    }

    /// Returns the source text of a plain (unquoted) scalar.
    fn scalar_at(&self, node: &YamlNode) -> &str {
        let at = node.origin.position;
        let line = self.text.lines().nth(at.line - 1).unwrap_or_default();
        let start = line.char_indices().nth(at.column - 1).map_or(line.len(), |(start, _)| start);
        let rest = &line[start..];
        let end = rest.find([',', '}', ']', '#']).unwrap_or(rest.len());
        rest[..end].trim_end()
    }
}
