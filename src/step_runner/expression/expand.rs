//! Expansion of expressions in texts and values.

use std::collections::BTreeSet;

use super::super::Value;
use super::context::{Context, Expanded};
use super::error::{ExpressionError, ExpressionErrorKind as Kind};
use super::evaluate::{Evaluator, MAX_VALUE_DEPTH};
use super::operators::is_truthy;
use super::parser::Parser;
use super::syntax::Part;

/// Returns whether a text contains expressions.
pub fn is_dynamic(text: &str) -> bool {
    text.contains("${{")
}

/// Expands the expressions in a text; an expression that is the whole text keeps its type.
pub fn expand(text: &str, context: &Context) -> Result<Expanded, ExpressionError> {
    let mut evaluator = Evaluator::new(context);
    let value = expand_in(&mut evaluator, text, context)?;
    Ok(Expanded { value, secrets: evaluator.secrets })
}

/// Expands the expressions in a text; returns the text and the names of sensitive values it depends on.
pub fn expand_text(
    text: &str,
    context: &Context,
) -> Result<(String, BTreeSet<String>), ExpressionError> {
    let mut evaluator = Evaluator::new(context);
    let text = evaluator.text(&Parser::new(text, Some(context)).text()?)?;
    Ok((text, evaluator.secrets))
}

/// Expands the expressions in all strings of a value, but not in member names.
pub fn expand_value(value: &Value, context: &Context) -> Result<Expanded, ExpressionError> {
    let mut evaluator = Evaluator::new(context);
    let value = expand_deep(&mut evaluator, value, context, MAX_VALUE_DEPTH)?;
    Ok(Expanded { value, secrets: evaluator.secrets })
}

/// Returns whether the condition `if:` of a step holds, with or without `${{ }}` around it.
///
/// Unless it calls `success()`, `failure()`, `always()` or `cancelled()`, it does not hold after a failed
/// step.
pub fn condition(text: &str, context: &Context) -> Result<bool, ExpressionError> {
    let (node, asks_for_status) = Parser::new(text, Some(context)).condition()?;
    let mut evaluator = Evaluator::new(context);
    if !asks_for_status && !evaluator.succeeds() {
        return Ok(false);
    }
    let value = evaluator.value(&node)?;
    Ok(is_truthy(&value))
}

/// Checks the expressions in a text: syntax, functions, and the first names of paths.
///
/// Stricter than [`expand`]: a path that is valid only if it exists (`inputs.a b`) is rejected.
pub fn check(text: &str) -> Result<(), ExpressionError> {
    Parser::new(text, None).text().map(drop)
}

/// Checks the syntax of a [`condition`] like [`check`].
pub fn check_condition(text: &str) -> Result<(), ExpressionError> {
    Parser::new(text, None).condition().map(drop)
}

fn expand_in(
    evaluator: &mut Evaluator<'_>,
    text: &str,
    context: &Context,
) -> Result<Value, ExpressionError> {
    let parts = Parser::new(text, Some(context)).text()?;
    match parts.as_slice() {
        [Part::Node(node)] => evaluator.owned(node),
        // A YAML block scalar ends with a line break, which must not turn a list into text.
        [Part::Node(node), Part::Plain(plain)] if plain == "\n" => {
            Ok(match evaluator.owned(node)? {
                value @ (Value::Array(_) | Value::Object(_)) => value,
                value => Value::String(value.to_text() + plain),
            })
        }
        parts => evaluator.text(parts).map(Value::String),
    }
}

fn expand_deep(
    evaluator: &mut Evaluator<'_>,
    value: &Value,
    context: &Context,
    depth: usize,
) -> Result<Value, ExpressionError> {
    let inner = || depth.checked_sub(1).ok_or_else(|| Kind::TooDeep.at(0));
    Ok(match value {
        Value::String(text) => expand_in(evaluator, text, context)?,
        Value::Array(items) => {
            let depth = inner()?;
            let items = items.iter().map(|item| expand_deep(evaluator, item, context, depth));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Object(members) => {
            let depth = inner()?;
            let members = members.iter().map(|(name, value)| {
                Ok((name.clone(), expand_deep(evaluator, value, context, depth)?))
            });
            Value::Object(members.collect::<Result<_, ExpressionError>>()?)
        }
        other => other.clone(),
    })
}
