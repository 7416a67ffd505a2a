//! The language, and compatibility with the one before it.

mod language;
mod laws;
mod vectors;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::super::Value;
use super::*;

/// Returns the context that the vectors are about.
fn context() -> Context {
    static CONTEXT: LazyLock<Context> = LazyLock::new(vectors::context);
    CONTEXT.clone()
}

/// Returns what a text expands to, as JSON, or the error.
fn expanded(text: &str) -> Result<String, String> {
    match expand(text, &context()) {
        Ok(expanded) => Ok(expanded.value.to_json()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the value of an expression as JSON, or the error.
fn value(expression: &str) -> String {
    expanded(&format!("${{{{{expression}}}}}")).unwrap_or_else(|error| error)
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn secret(value: &str, name: &str) -> Expanded {
    Expanded { value: Value::String(value.to_owned()), secrets: names(&[name]) }
}
