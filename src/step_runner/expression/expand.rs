//! Expansion of expressions in texts and values.

use std::collections::BTreeSet;

use super::super::Value;
use super::error::{ExpressionError, ExpressionErrorKind as Kind};
use super::evaluate::{Evaluator, MAX_VALUE_DEPTH};
use super::names::{Context, Expanded};
use super::operators::is_truthy;
use super::parser::Parser;
use super::syntax::{Base, Expr, Key, Node, Part};

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

/// A name used in an expression, such as `inputs.path`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mention {
    /// Byte offset in the text.
    pub offset: usize,
    pub root: String,
    /// Member, such as `path`; `None` if there is none, or it is computed.
    pub key: Option<String>,
}

/// Returns the names used in the expressions of a text, after [`check`](super::check).
pub fn mentions(text: &str) -> Result<Vec<Mention>, ExpressionError> {
    let mut found = Vec::new();
    in_text(&Parser::new(text, None).text()?, &mut found);
    Ok(found)
}

/// Returns the names used in a [`condition`](super::condition), after
/// [`check_condition`](super::check_condition).
pub fn condition_mentions(text: &str) -> Result<Vec<Mention>, ExpressionError> {
    let mut found = Vec::new();
    in_node(&Parser::new(text, None).condition()?.0, &mut found);
    Ok(found)
}

fn in_text(parts: &[Part<'_>], found: &mut Vec<Mention>) {
    for part in parts {
        match part {
            Part::Plain(_) => {}
            Part::Node(node) => in_node(node, found),
        }
    }
}

fn in_node(node: &Node<'_>, found: &mut Vec<Mention>) {
    match &node.expr {
        // The parser makes such paths only with a context.
        Expr::Value(_) | Expr::Path(_) => {}
        Expr::Text(parts) => in_text(parts, found),
        Expr::Array(items) | Expr::Call(_, items) => {
            items.iter().for_each(|item| in_node(item, found));
        }
        Expr::Object(members) => {
            for (name, value) in members {
                in_node(name, found);
                in_node(value, found);
            }
        }
        Expr::Access { base, keys, .. } => {
            match base {
                Base::Root(root) => {
                    let key = keys.first().and_then(literal);
                    found.push(Mention { offset: node.at, root: (*root).to_owned(), key });
                }
                Base::Node(inner) => in_node(inner, found),
            }
            for key in keys {
                if let Key::Index(index) = key {
                    in_node(index, found);
                }
            }
        }
        Expr::Unary(_, inner) => in_node(inner, found),
        Expr::Fold(first, operations) => {
            in_node(first, found);
            operations.iter().for_each(|operation| in_node(&operation.right, found));
        }
    }
}

/// Returns the name of a key, if it is a literal.
fn literal(key: &Key<'_>) -> Option<String> {
    let index = match key {
        Key::Name(_, name) => return Some((*name).to_owned()),
        Key::Index(index) => index,
    };
    match &index.expr {
        Expr::Value(Value::String(name)) => Some(name.clone()),
        Expr::Text(parts) => match &parts[..] {
            [Part::Plain(name)] => Some(name.clone()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(mentions: Vec<Mention>) -> Vec<String> {
        let name = |mention: Mention| match mention.key {
            Some(key) => format!("{}.{key}", mention.root),
            None => mention.root,
        };
        mentions.into_iter().map(name).collect()
    }

    #[test]
    fn names_are_found_wherever_they_stand() {
        let text = "a ${{ inputs.a + \"${{env.B}}\" }} ${{ {k: [steps['c'].outputs.d, -(vars[\"e\"])], \
                    (work_dir): str(inputs[env.F])} }} \\${{inputs.none}}";
        let mut found = names(mentions(text).unwrap());
        found.sort();
        let all = ["env.B", "env.F", "inputs", "inputs.a", "steps.c", "vars.e", "work_dir"];
        assert_eq!(found, all);
        assert_eq!(names(condition_mentions("inputs.a == 'inputs.b'").unwrap()), ["inputs.a"]);
        assert_eq!(mentions("ab${{ inputs.a }}").unwrap()[0].offset, 6);
        assert!(mentions("${{ inputs. }}").is_err() && condition_mentions("inputs.").is_err());
    }
}
