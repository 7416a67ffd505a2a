//! Tests of the language, and of compatibility with its predecessor.

mod language;
mod laws;
mod vectors;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::super::ExprValue;
use super::*;

/// Returns the context of the recorded vectors.
fn context() -> ExprContext {
    static CONTEXT: LazyLock<ExprContext> = LazyLock::new(vectors::context);
    CONTEXT.clone()
}

/// Returns the expansion of a text as JSON, or the error.
fn expand_to_json(text: &str) -> Result<String, String> {
    match expand(text, &context()) {
        Ok(expanded) => Ok(expanded.value.to_json()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the value of an expression as JSON, or the error.
fn value(expression: &str) -> String {
    expand_to_json(&format!("${{{{{expression}}}}}")).unwrap_or_else(|error| error)
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn secret(value: &str, name: &str) -> ExpandedValue {
    ExpandedValue { value: ExprValue::String(value.to_owned()), secrets: names(&[name]) }
}
