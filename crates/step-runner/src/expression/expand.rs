//! Expansion of expressions in texts and values.

use std::collections::BTreeSet;

use super::super::ExprValue;
use super::error::{ExpressionError, ExpressionErrorKind as Kind};
use super::evaluate::{Evaluator, MAX_VALUE_DEPTH};
use super::names::{ExpandedValue, ExprContext};
use super::operators::is_truthy;
use super::parser::ExprParser;
use super::syntax::{AccessBase, AccessKey, Expr, ExprNode, TextPart};

/// Returns whether a text contains expressions.
pub fn is_dynamic(text: &str) -> bool {
    text.contains("${{")
}

/// Expands the expressions in a text; an expression that is the whole text keeps its type.
pub fn expand(text: &str, context: &ExprContext) -> Result<ExpandedValue, ExpressionError> {
    let mut evaluator = Evaluator::new(context);
    let value = expand_in(&mut evaluator, text, context)?;
    Ok(ExpandedValue { value, secrets: evaluator.secrets })
}

/// Expands the expressions in a text. Returns the text and the names of the sensitive values it
/// depends on.
pub fn expand_text(
    text: &str,
    context: &ExprContext,
) -> Result<(String, BTreeSet<String>), ExpressionError> {
    let mut evaluator = Evaluator::new(context);
    let text = evaluator.text(&ExprParser::new(text, Some(context)).text()?)?;
    Ok((text, evaluator.secrets))
}

/// Expands the expressions in all strings of a value, but not in member names.
pub fn expand_value(
    value: &ExprValue,
    context: &ExprContext,
) -> Result<ExpandedValue, ExpressionError> {
    let mut evaluator = Evaluator::new(context);
    let value = expand_deep(&mut evaluator, value, context, MAX_VALUE_DEPTH)?;
    Ok(ExpandedValue { value, secrets: evaluator.secrets })
}

/// Returns whether the condition `if:` of a step is true, with or without `${{ }}` around it.
///
/// Unless it calls `success()`, `failure()`, `always()` or `cancelled()`, it is false whenever
/// `success()` is.
pub fn condition(text: &str, context: &ExprContext) -> Result<bool, ExpressionError> {
    let (node, asks_for_status) = ExprParser::new(text, Some(context)).condition()?;
    let mut evaluator = Evaluator::new(context);
    if !asks_for_status && !evaluator.is_success() {
        return Ok(false);
    }
    let value = evaluator.value(&node)?;
    Ok(is_truthy(&value))
}

fn expand_in(
    evaluator: &mut Evaluator<'_>,
    text: &str,
    context: &ExprContext,
) -> Result<ExprValue, ExpressionError> {
    let parts = ExprParser::new(text, Some(context)).text()?;
    match parts.as_slice() {
        [TextPart::Node(node)] => evaluator.evaluate_owned(node),
        // A YAML block scalar ends with a line break, which must not turn a list into text.
        [TextPart::Node(node), TextPart::Plain(plain)] if plain == "\n" => {
            Ok(match evaluator.evaluate_owned(node)? {
                value @ (ExprValue::Array(_) | ExprValue::Object(_)) => value,
                value => ExprValue::String(value.to_text() + plain),
            })
        }
        parts => evaluator.text(parts).map(ExprValue::String),
    }
}

fn expand_deep(
    evaluator: &mut Evaluator<'_>,
    value: &ExprValue,
    context: &ExprContext,
    depth: usize,
) -> Result<ExprValue, ExpressionError> {
    let inner = || depth.checked_sub(1).ok_or_else(|| Kind::TooDeep.with_offset(0));
    Ok(match value {
        ExprValue::String(text) => expand_in(evaluator, text, context)?,
        ExprValue::Array(items) => {
            let depth = inner()?;
            let items = items.iter().map(|item| expand_deep(evaluator, item, context, depth));
            ExprValue::Array(items.collect::<Result<_, _>>()?)
        }
        ExprValue::Object(members) => {
            let depth = inner()?;
            let members = members.iter().map(|(name, value)| {
                Ok((name.clone(), expand_deep(evaluator, value, context, depth)?))
            });
            ExprValue::Object(members.collect::<Result<_, ExpressionError>>()?)
        }
        other => other.clone(),
    })
}

/// A name used in an expression, such as `inputs.path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameMention {
    /// Byte offset in the text.
    pub offset: usize,
    pub root: String,
    /// Member, such as `path`; `None` if there is no member, or if its name is computed.
    pub key: Option<String>,
}

/// Checks the expressions in a text: syntax, functions, and the names with which paths start.
/// Returns the names used.
///
/// Stricter than [`expand`]: a path that is valid only if it exists, such as `vars.a b` with a
/// blank in a name, is rejected.
pub fn find_mentions(text: &str) -> Result<Vec<NameMention>, ExpressionError> {
    let mut found = Vec::new();
    collect_text_mentions(&ExprParser::new(text, None).text()?, &mut found);
    Ok(found)
}

/// Checks a [`condition`] like [`find_mentions`], and returns the names used in it.
pub fn condition_mentions(text: &str) -> Result<Vec<NameMention>, ExpressionError> {
    let mut found = Vec::new();
    collect_node_mentions(&ExprParser::new(text, None).condition()?.0, &mut found);
    Ok(found)
}

fn collect_text_mentions(parts: &[TextPart<'_>], found: &mut Vec<NameMention>) {
    for part in parts {
        match part {
            TextPart::Plain(_) => {}
            TextPart::Node(node) => collect_node_mentions(node, found),
        }
    }
}

fn collect_node_mentions(node: &ExprNode<'_>, found: &mut Vec<NameMention>) {
    match &node.expr {
        // The parser creates such paths only with a context.
        Expr::Value(_) | Expr::Path(_) => {}
        Expr::Text(parts) => collect_text_mentions(parts, found),
        Expr::Array(items) | Expr::Call(_, items) => {
            items.iter().for_each(|item| collect_node_mentions(item, found));
        }
        Expr::Object(members) => {
            for (name, value) in members {
                collect_node_mentions(name, found);
                collect_node_mentions(value, found);
            }
        }
        Expr::Access { base, keys, .. } => {
            match base {
                AccessBase::Root(root) => {
                    let key = keys.first().and_then(literal);
                    found.push(NameMention { offset: node.at, root: (*root).to_owned(), key });
                }
                AccessBase::Node(inner) => collect_node_mentions(inner, found),
            }
            for key in keys {
                if let AccessKey::Index(index) = key {
                    collect_node_mentions(index, found);
                }
            }
        }
        Expr::Unary(_, inner) => collect_node_mentions(inner, found),
        Expr::Fold(first, operations) => {
            collect_node_mentions(first, found);
            operations.iter().for_each(|operation| collect_node_mentions(&operation.right, found));
        }
    }
}

/// Returns the name in a key if it is written literally; `None` for a computed name or an index.
fn literal(key: &AccessKey<'_>) -> Option<String> {
    let index = match key {
        AccessKey::Name(_, name) => return Some((*name).to_owned()),
        AccessKey::Index(index) => index,
    };
    match &index.expr {
        Expr::Value(ExprValue::String(name)) => Some(name.clone()),
        Expr::Text(parts) => match &parts[..] {
            [TextPart::Plain(name)] => Some(name.clone()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(mentions: Vec<NameMention>) -> Vec<String> {
        let name = |mention: NameMention| match mention.key {
            Some(key) => format!("{}.{key}", mention.root),
            None => mention.root,
        };
        mentions.into_iter().map(name).collect()
    }

    #[test]
    fn names_are_found_in_every_position() {
        let text = "a ${{ inputs.a + \"${{env.B}}\" }} ${{ {k: [steps['c'].outputs.d, -(vars[\"e\"])], \
                    (work_dir): str(inputs[env.F])} }} \\${{inputs.none}}";
        let mut found = names(find_mentions(text).unwrap());
        found.sort();
        let all = ["env.B", "env.F", "inputs", "inputs.a", "steps.c", "vars.e", "work_dir"];
        assert_eq!(found, all);
        assert_eq!(names(condition_mentions("inputs.a == 'inputs.b'").unwrap()), ["inputs.a"]);
        assert_eq!(find_mentions("ab${{ inputs.a }}").unwrap()[0].offset, 6);
        assert!(find_mentions("${{ inputs. }}").is_err() && condition_mentions("inputs.").is_err());
    }
}
