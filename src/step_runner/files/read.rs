//! Parsing whole step output files.

use std::collections::BTreeMap;

use super::super::document::Output;
use super::super::{Type, Value};
use super::error::{FileError, KeyError};
use super::lines;

/// Size limit of a file in bytes. Callers need to read at most one byte more.
pub const MAX_BYTES: usize = 10 << 20;

/// Parses an output file, checks the outputs against the declared ones, and adds defaults.
pub fn read_outputs(
    content: &[u8],
    declared: &BTreeMap<String, Output>,
) -> Result<BTreeMap<String, Value>, FileError> {
    let file = "output file";
    let error = |key: &str, error| FileError::Key { file, key: key.to_owned(), error };
    let mut outputs = read(content, file, |name| declared.get(name).map(|output| output.kind))?;
    for (name, value) in &outputs {
        let declared = declared.get(name).ok_or_else(|| error(name, KeyError::Unexpected))?.kind;
        // Null is no value: a line with it has been rejected.
        if let Some(received) = value.kind().filter(|kind| *kind != declared) {
            return Err(error(name, KeyError::Type { declared, received }));
        }
    }
    for (name, output) in declared {
        if !outputs.contains_key(name) {
            let default = output.default.clone();
            outputs.insert(name.clone(), default.ok_or_else(|| error(name, KeyError::Missing))?);
        }
    }
    Ok(outputs)
}

/// Parses an export file: environment variables for later steps.
pub fn read_exports(content: &[u8]) -> Result<BTreeMap<String, String>, FileError> {
    let file = "env file";
    let text = |(key, value): (String, Value)| match (&value, value.kind()) {
        (Value::Array(_) | Value::Object(_), Some(kind)) => {
            Err(FileError::Key { file, key, error: KeyError::NoText(kind) })
        }
        // Unlike in JSON, without an exponent.
        (Value::Number(number), _) => Ok((key, number.to_string())),
        _ => Ok((key, value.to_text())),
    };
    read(content, file, |_| None)?.into_iter().map(text).collect()
}

fn read(
    content: &[u8],
    file: &'static str,
    kind: impl Fn(&str) -> Option<Type>,
) -> Result<BTreeMap<String, Value>, FileError> {
    if content.len() > MAX_BYTES {
        return Err(FileError::TooLarge { file, limit: MAX_BYTES });
    }
    let lines = content.split(|&byte| byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && *line != b"\r")
        .map(|(index, line)| {
            lines::read(line).map_err(|error| {
                let hint = hint(line, &kind);
                FileError::Line { file, line: index + 1, error, hint }
            })
        })
        .collect()
}

/// Returns the right form of a line `name=value`, as shells have it.
///
/// The line may have a secret: only the name of a declared output is repeated.
fn hint(line: &[u8], kind: impl Fn(&str) -> Option<Type>) -> Option<String> {
    let line = std::str::from_utf8(line).ok()?;
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, _) = line.split_once('=')?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(is_word) {
        return None;
    }
    let kind = kind(name);
    let name = if kind.is_some() { name } else { "NAME" };
    let value = match kind {
        Some(Type::Number) => "1",
        Some(Type::Boolean) => "true",
        Some(Type::Struct) => "{}",
        Some(Type::Array) => "[]",
        Some(Type::String) | None => "\"…\"",
    };
    Some(format!("{{\"name\": \"{name}\", \"value\": {value}}}"))
}
