//! Evaluation of parsed expressions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::super::Value;
use super::error::{ExpressionError, ExpressionErrorKind as Kind};
use super::names::{self, Context, NameTarget};
use super::operators::{self, NODE_BYTES, Operator, is_truthy};
use super::syntax::{Base, Expr, Function, Key, Node, Operation, Part};

/// Limit of the bytes that an expansion copies, joins and compares: repeated joins grow exponentially.
const MAX_BYTES: usize = 10 << 20;

/// Limit of the nesting depth of values.
pub const MAX_VALUE_DEPTH: usize = 128;

type Result<T> = std::result::Result<T, ExpressionError>;

/// Evaluates the expressions of one expansion, within a budget.
pub struct Evaluator<'c> {
    context: &'c Context,
    /// Names of all sensitive values that were used, even in comparisons: the result depends on them.
    pub secrets: BTreeSet<String>,
    budget: usize,
}

impl<'c> Evaluator<'c> {
    pub(super) fn new(context: &'c Context) -> Self {
        Evaluator { context, secrets: BTreeSet::new(), budget: MAX_BYTES }
    }

    /// Evaluates a text with expressions.
    pub fn text(&mut self, parts: &[Part<'_>]) -> Result<String> {
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Plain(plain) => text.push_str(plain),
                Part::Node(node) => match self.value(node)?.as_ref() {
                    Value::String(value) => {
                        self.spend(value.len(), node.at)?;
                        text.push_str(value);
                    }
                    value => {
                        self.weigh(value, MAX_VALUE_DEPTH, node.at)?;
                        text.push_str(&value.to_text());
                    }
                },
            }
        }
        Ok(text)
    }

    /// Evaluates an expression to an owned value.
    pub fn owned(&mut self, node: &Node<'_>) -> Result<Value> {
        match self.value(node)? {
            Cow::Owned(value) => Ok(value),
            Cow::Borrowed(value) => {
                self.weigh(value, MAX_VALUE_DEPTH, node.at)?;
                Ok(value.clone())
            }
        }
    }

    /// Evaluates an expression, if possible without copying.
    pub fn value(&mut self, node: &Node<'_>) -> Result<Cow<'c, Value>> {
        Ok(Cow::Owned(match &node.expr {
            Expr::Value(value) => value.clone(),
            Expr::Text(parts) => Value::String(self.text(parts)?),
            Expr::Array(items) => {
                Value::Array(items.iter().map(|item| self.owned(item)).collect::<Result<Vec<_>>>()?)
            }
            Expr::Object(members) => self.object(members)?,
            Expr::Path(path) => {
                let found = names::find(self.context, path, &mut self.secrets);
                let target = found.ok_or_else(|| not_found(path, path, node.at))?;
                return self.settle(target, node.at);
            }
            Expr::Access { path, base, keys } => return self.access(path, base, keys, node.at),
            Expr::Unary(operator, operand) => {
                let operand = self.value(operand)?;
                operator.apply(&operand).map_err(|kind| kind.at(node.at))?
            }
            Expr::Fold(first, operations) => {
                let mut left = self.value(first)?;
                for operation in operations {
                    left = self.operate(left, operation)?;
                }
                return Ok(left);
            }
            Expr::Call(function, values) => return self.call(*function, values, node.at),
        }))
    }

    fn object(&mut self, members: &[(Node<'_>, Node<'_>)]) -> Result<Value> {
        let mut object = BTreeMap::new();
        for (key, value) in members {
            let Value::String(name) = self.owned(key)? else { return Err(Kind::Key.at(key.at)) };
            object.insert(name, self.owned(value)?);
        }
        Ok(Value::Object(object))
    }

    fn access(
        &mut self,
        path: &str,
        base: &Base<'_>,
        keys: &[Key<'_>],
        at: usize,
    ) -> Result<Cow<'c, Value>> {
        let mut target = match base {
            Base::Root(name) => {
                NameTarget::root(self.context, name).ok_or_else(|| not_found(path, name, at))?
            }
            Base::Node(node) => NameTarget::Value(self.value(node)?),
        };
        for key in keys {
            let (name, at);
            let index;
            match key {
                Key::Name(written_at, written) => (name, at) = (*written, *written_at),
                Key::Index(node) => {
                    index = self.value(node)?;
                    at = node.at;
                    name = match (index.as_ref(), target) {
                        (Value::String(name), same) => {
                            target = same;
                            name
                        }
                        (number, NameTarget::Value(value)) => {
                            target =
                                NameTarget::Value(item(value, number).map_err(|kind| kind.at(at))?);
                            continue;
                        }
                        _ => return Err(Kind::Key.at(at)),
                    };
                }
            }
            let next = target.member(name, &mut self.secrets);
            target = next.ok_or_else(|| not_found(path, name, at))?;
        }
        self.settle(target, at)
    }

    /// Returns the value of a name; that of `inputs` and the like is an object of all its members.
    fn settle(&mut self, target: NameTarget<'c>, at: usize) -> Result<Cow<'c, Value>> {
        match target {
            NameTarget::Value(value) => Ok(value),
            NameTarget::Text(text) => {
                self.spend(text.len(), at)?;
                Ok(Cow::Owned(Value::String(text.to_owned())))
            }
            whole => {
                let value = whole.object(&mut self.secrets);
                self.weigh(&value, MAX_VALUE_DEPTH, at)?;
                Ok(Cow::Owned(value))
            }
        }
    }

    fn operate(
        &mut self,
        left: Cow<'c, Value>,
        operation: &Operation<'_>,
    ) -> Result<Cow<'c, Value>> {
        let decided = match operation.operator {
            Operator::And => !is_truthy(&left),
            Operator::Or => is_truthy(&left),
            _ => false,
        };
        if decided {
            return Ok(left);
        }
        let right = self.value(&operation.right)?;
        match (operation.operator, left, right.as_ref()) {
            (Operator::And | Operator::Or, ..) => Ok(right),
            (Operator::Add, left, Value::String(right)) if matches!(*left, Value::String(_)) => {
                self.join(left, right, operation.at)
            }
            (operator, left, right) => {
                let mut work = 0;
                let value = operators::apply(operator, &left, right, &mut work);
                self.spend(work, operation.at)?;
                value.map(Cow::Owned).map_err(|kind| kind.at(operation.at))
            }
        }
    }

    fn join(&mut self, left: Cow<'_, Value>, right: &str, at: usize) -> Result<Cow<'c, Value>> {
        if let (Cow::Borrowed(_), Value::String(text)) = (&left, left.as_ref()) {
            self.spend(text.len(), at)?;
        }
        self.spend(right.len(), at)?;
        let mut joined = left.into_owned();
        if let Value::String(text) = &mut joined {
            text.push_str(right);
        }
        Ok(Cow::Owned(joined))
    }

    fn call(
        &mut self,
        function: Function,
        values: &[Node<'_>],
        at: usize,
    ) -> Result<Cow<'c, Value>> {
        let flag = match function {
            Function::Always => true,
            Function::Cancelled => self.context.cancelled,
            Function::Failure => self.context.failed,
            Function::Success => self.succeeds(),
            Function::Str | Function::Num | Function::Bool => {
                let [value] = values else {
                    let (function, takes) = (function.name(), function.takes());
                    return Err(Kind::Arguments { function, takes }.at(at));
                };
                let value = self.value(value)?;
                match function {
                    Function::Num => {
                        return operators::number(&value).map(Cow::Owned).map_err(|k| k.at(at));
                    }
                    Function::Str => return self.string(value, at),
                    _ => is_truthy(&value),
                }
            }
        };
        Ok(Cow::Owned(Value::Bool(flag)))
    }

    fn string(&mut self, value: Cow<'c, Value>, at: usize) -> Result<Cow<'c, Value>> {
        Ok(match value.as_ref() {
            Value::String(_) => value,
            Value::Null => Cow::Owned(Value::String("<null>".to_owned())),
            other => {
                self.weigh(other, MAX_VALUE_DEPTH, at)?;
                Cow::Owned(Value::String(other.to_text()))
            }
        })
    }

    /// Returns the value of `success()`.
    pub fn succeeds(&self) -> bool {
        !self.context.failed && !self.context.cancelled
    }

    /// Charges the budget for a copy of a value.
    fn weigh(&mut self, value: &Value, depth: usize, at: usize) -> Result<()> {
        let inner = || depth.checked_sub(1).ok_or_else(|| Kind::TooDeep.at(at));
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => self.spend(NODE_BYTES, at),
            Value::String(text) => self.spend(NODE_BYTES + text.len(), at),
            Value::Array(items) => {
                self.spend(NODE_BYTES, at)?;
                let depth = inner()?;
                items.iter().try_for_each(|item| self.weigh(item, depth, at))
            }
            Value::Object(members) => {
                self.spend(NODE_BYTES, at)?;
                let depth = inner()?;
                members.iter().try_for_each(|(name, value)| {
                    self.spend(NODE_BYTES + name.len(), at)?;
                    self.weigh(value, depth, at)
                })
            }
        }
    }

    fn spend(&mut self, bytes: usize, at: usize) -> Result<()> {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(|| Kind::TooLarge.at(at))?;
        Ok(())
    }
}

/// Returns the item of an array.
fn item<'c>(array: Cow<'c, Value>, index: &Value) -> std::result::Result<Cow<'c, Value>, Kind> {
    let at = match (&*array, index) {
        (Value::Array(items), Value::Number(at)) if (0.0..items.len() as f64).contains(at) =>
        {
            #[expect(clippy::cast_possible_truncation, reason = "it is within the array")]
            Some(*at as usize).filter(|whole| *whole as f64 == *at)
        }
        _ => None,
    };
    match (array, at) {
        (Cow::Borrowed(Value::Array(items)), Some(at)) => Ok(Cow::Borrowed(&items[at])),
        (Cow::Owned(Value::Array(mut items)), Some(at)) => Ok(Cow::Owned(items.swap_remove(at))),
        (other, _) => {
            let value = match &*other {
                Value::Array(items) => format!("an array of {}", items.len()),
                other => other.kind().map_or("null", |kind| kind.name()).to_owned(),
            };
            let index = match index {
                Value::Number(_) => format!("[{}]", index.to_text()),
                other => format!("[…] by {}", other.kind().map_or("null", |kind| kind.name())),
            };
            Err(Kind::Index { index, value })
        }
    }
}

fn not_found(path: &str, key: &str, at: usize) -> ExpressionError {
    Kind::NotFound { path: path.to_owned(), key: key.to_owned() }.at(at)
}
