//! Names used in expressions, for static checks.

use super::super::Value;
use super::error::ExpressionError;
use super::parser::Parser;
use super::syntax::{Base, Expr, Key, Node, Part};

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
