//! Parsing whole step output files.

use std::collections::BTreeMap;

use super::super::Value;
use super::super::document::Output;
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
    let mut outputs = read(content, file)?;
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
    read(content, file)?.into_iter().map(text).collect()
}

fn read(content: &[u8], file: &'static str) -> Result<BTreeMap<String, Value>, FileError> {
    if content.len() > MAX_BYTES {
        return Err(FileError::TooLarge { file, limit: MAX_BYTES });
    }
    let lines = content.split(|&byte| byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && *line != b"\r")
        .map(|(index, line)| {
            lines::read(line).map_err(|error| FileError::Line { file, line: index + 1, error })
        })
        .collect()
}
