//! Evaluation of parsed expressions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::super::ExprValue;
use super::error::{ExpressionError, ExpressionErrorKind as Kind};
use super::names::{self, ExprContext, NameTarget};
use super::operators::{self, BinaryOperator, NODE_BYTES, is_truthy};
use super::syntax::{
    AccessBase, AccessKey, BinaryOperation, Expr, ExprFunction, ExprNode, TextPart,
};

/// Maximum number of bytes that one expansion copies, concatenates and compares: repeated
/// concatenation makes results grow exponentially.
const MAX_BYTES: usize = 10 << 20;

/// Limit of the nesting depth of values.
pub const MAX_VALUE_DEPTH: usize = 128;

type EvalResult<T> = Result<T, ExpressionError>;

/// An evaluator for the expressions of one expansion, which may process a limited number of bytes.
pub struct Evaluator<'c> {
    context: &'c ExprContext,
    /// Names of all sensitive values that were used, even in comparisons, as the result depends on
    /// them.
    pub secrets: BTreeSet<String>,
    budget: usize,
}

impl<'c> Evaluator<'c> {
    pub(super) fn new(context: &'c ExprContext) -> Self {
        Evaluator { context, secrets: BTreeSet::new(), budget: MAX_BYTES }
    }

    /// Evaluates a text with expressions to a string.
    pub fn text(&mut self, parts: &[TextPart<'_>]) -> EvalResult<String> {
        let mut text = String::new();
        for part in parts {
            match part {
                TextPart::Plain(plain) => text.push_str(plain),
                TextPart::Node(node) => match self.value(node)?.as_ref() {
                    ExprValue::String(value) => {
                        self.spend(value.len(), node.at)?;
                        text.push_str(value);
                    }
                    value => {
                        self.charge_value(value, MAX_VALUE_DEPTH, node.at)?;
                        text.push_str(&value.to_text());
                    }
                },
            }
        }
        Ok(text)
    }

    /// Evaluates an expression to an owned value.
    pub fn evaluate_owned(&mut self, node: &ExprNode<'_>) -> EvalResult<ExprValue> {
        match self.value(node)? {
            Cow::Owned(value) => Ok(value),
            Cow::Borrowed(value) => {
                self.charge_value(value, MAX_VALUE_DEPTH, node.at)?;
                Ok(value.clone())
            }
        }
    }

    /// Evaluates an expression, if possible without copying.
    pub fn value(&mut self, node: &ExprNode<'_>) -> EvalResult<Cow<'c, ExprValue>> {
        Ok(Cow::Owned(match &node.expr {
            Expr::Value(value) => value.clone(),
            Expr::Text(parts) => ExprValue::String(self.text(parts)?),
            Expr::Array(items) => ExprValue::Array(
                items
                    .iter()
                    .map(|item| self.evaluate_owned(item))
                    .collect::<EvalResult<Vec<_>>>()?,
            ),
            Expr::Object(members) => self.object(members)?,
            Expr::Path(path) => {
                let found = names::find(self.context, path, &mut self.secrets);
                let target = found.ok_or_else(|| not_found_error(path, path, node.at))?;
                return self.resolve_target(target, node.at);
            }
            Expr::Access { path, base, keys } => return self.access(path, base, keys, node.at),
            Expr::Unary(operator, operand) => {
                let operand = self.value(operand)?;
                operator.apply(&operand).map_err(|kind| kind.with_offset(node.at))?
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

    fn object(&mut self, members: &[(ExprNode<'_>, ExprNode<'_>)]) -> EvalResult<ExprValue> {
        let mut object = BTreeMap::new();
        for (key, value) in members {
            let ExprValue::String(name) = self.evaluate_owned(key)? else {
                return Err(Kind::Key.with_offset(key.at));
            };
            object.insert(name, self.evaluate_owned(value)?);
        }
        Ok(ExprValue::Object(object))
    }

    fn access(
        &mut self,
        path: &str,
        base: &AccessBase<'_>,
        keys: &[AccessKey<'_>],
        at: usize,
    ) -> EvalResult<Cow<'c, ExprValue>> {
        let mut target = match base {
            AccessBase::Root(name) => NameTarget::root(self.context, name)
                .ok_or_else(|| not_found_error(path, name, at))?,
            AccessBase::Node(node) => NameTarget::Value(self.value(node)?),
        };
        for key in keys {
            let (name, at);
            let index;
            match key {
                AccessKey::Name(written_at, written) => (name, at) = (*written, *written_at),
                AccessKey::Index(node) => {
                    index = self.value(node)?;
                    at = node.at;
                    name = match (index.as_ref(), target) {
                        (ExprValue::String(name), same) => {
                            target = same;
                            name
                        }
                        (number, NameTarget::Value(value)) => {
                            target = NameTarget::Value(
                                item(value, number).map_err(|kind| kind.with_offset(at))?,
                            );
                            continue;
                        }
                        _ => return Err(Kind::Key.with_offset(at)),
                    };
                }
            }
            let next = target.member(name, &mut self.secrets);
            target = next.ok_or_else(|| not_found_error(path, name, at))?;
        }
        self.resolve_target(target, at)
    }

    /// Returns the value of a resolved name; a namespace such as `inputs` becomes an object with
    /// all its members.
    fn resolve_target(
        &mut self,
        target: NameTarget<'c>,
        at: usize,
    ) -> EvalResult<Cow<'c, ExprValue>> {
        match target {
            NameTarget::Value(value) => Ok(value),
            NameTarget::Text(text) => {
                self.spend(text.len(), at)?;
                Ok(Cow::Owned(ExprValue::String(text.to_owned())))
            }
            whole => {
                let value = whole.object(&mut self.secrets);
                self.charge_value(&value, MAX_VALUE_DEPTH, at)?;
                Ok(Cow::Owned(value))
            }
        }
    }

    fn operate(
        &mut self,
        left: Cow<'c, ExprValue>,
        operation: &BinaryOperation<'_>,
    ) -> EvalResult<Cow<'c, ExprValue>> {
        let decided = match operation.operator {
            BinaryOperator::And => !is_truthy(&left),
            BinaryOperator::Or => is_truthy(&left),
            _ => false,
        };
        if decided {
            return Ok(left);
        }
        let right = self.value(&operation.right)?;
        match (operation.operator, left, right.as_ref()) {
            (BinaryOperator::And | BinaryOperator::Or, ..) => Ok(right),
            (BinaryOperator::Add, left, ExprValue::String(right))
                if matches!(*left, ExprValue::String(_)) =>
            {
                self.join(left, right, operation.at)
            }
            (operator, left, right) => {
                let mut work = 0;
                let value = operators::apply(operator, &left, right, &mut work);
                self.spend(work, operation.at)?;
                value.map(Cow::Owned).map_err(|kind| kind.with_offset(operation.at))
            }
        }
    }

    fn join(
        &mut self,
        left: Cow<'_, ExprValue>,
        right: &str,
        at: usize,
    ) -> EvalResult<Cow<'c, ExprValue>> {
        if let (Cow::Borrowed(_), ExprValue::String(text)) = (&left, left.as_ref()) {
            self.spend(text.len(), at)?;
        }
        self.spend(right.len(), at)?;
        let mut joined = left.into_owned();
        if let ExprValue::String(text) = &mut joined {
            text.push_str(right);
        }
        Ok(Cow::Owned(joined))
    }

    fn call(
        &mut self,
        function: ExprFunction,
        values: &[ExprNode<'_>],
        at: usize,
    ) -> EvalResult<Cow<'c, ExprValue>> {
        let flag = match function {
            ExprFunction::Always => true,
            ExprFunction::Cancelled => self.context.cancelled,
            ExprFunction::Failure => self.context.failed,
            ExprFunction::Success => self.is_success(),
            ExprFunction::Str | ExprFunction::Num | ExprFunction::Bool => {
                let [value] = values else {
                    let (function, takes) = (function.name(), function.argument_count());
                    return Err(Kind::Arguments { function, takes }.with_offset(at));
                };
                let value = self.value(value)?;
                match function {
                    ExprFunction::Num => {
                        return operators::number(&value)
                            .map(Cow::Owned)
                            .map_err(|k| k.with_offset(at));
                    }
                    ExprFunction::Str => return self.string(value, at),
                    _ => is_truthy(&value),
                }
            }
        };
        Ok(Cow::Owned(ExprValue::Bool(flag)))
    }

    fn string(&mut self, value: Cow<'c, ExprValue>, at: usize) -> EvalResult<Cow<'c, ExprValue>> {
        Ok(match value.as_ref() {
            ExprValue::String(_) => value,
            ExprValue::Null => Cow::Owned(ExprValue::String("<null>".to_owned())),
            other => {
                self.charge_value(other, MAX_VALUE_DEPTH, at)?;
                Cow::Owned(ExprValue::String(other.to_text()))
            }
        })
    }

    /// Returns the value of `success()`.
    pub fn is_success(&self) -> bool {
        !self.context.failed && !self.context.cancelled
    }

    /// Subtracts the size of a value from the budget. Fails if the budget is used up, or the value
    /// is nested deeper than `depth`.
    fn charge_value(&mut self, value: &ExprValue, depth: usize, at: usize) -> EvalResult<()> {
        let inner = || depth.checked_sub(1).ok_or_else(|| Kind::TooDeep.with_offset(at));
        match value {
            ExprValue::Null | ExprValue::Bool(_) | ExprValue::Number(_) => {
                self.spend(NODE_BYTES, at)
            }
            ExprValue::String(text) => self.spend(NODE_BYTES + text.len(), at),
            ExprValue::Array(items) => {
                self.spend(NODE_BYTES, at)?;
                let depth = inner()?;
                items.iter().try_for_each(|item| self.charge_value(item, depth, at))
            }
            ExprValue::Object(members) => {
                self.spend(NODE_BYTES, at)?;
                let depth = inner()?;
                members.iter().try_for_each(|(name, value)| {
                    self.spend(NODE_BYTES + name.len(), at)?;
                    self.charge_value(value, depth, at)
                })
            }
        }
    }

    fn spend(&mut self, bytes: usize, at: usize) -> EvalResult<()> {
        self.budget =
            self.budget.checked_sub(bytes).ok_or_else(|| Kind::TooLarge.with_offset(at))?;
        Ok(())
    }
}

/// Returns the item at an index of an array. Fails if `array` is not an array, or has no such item.
fn item<'c>(array: Cow<'c, ExprValue>, index: &ExprValue) -> Result<Cow<'c, ExprValue>, Kind> {
    let at = match (&*array, index) {
        (ExprValue::Array(items), ExprValue::Number(at))
            if (0.0..items.len() as f64).contains(at) =>
        {
            #[expect(clippy::cast_possible_truncation, reason = "it is within the array")]
            Some(*at as usize).filter(|whole| *whole as f64 == *at)
        }
        _ => None,
    };
    match (array, at) {
        (Cow::Borrowed(ExprValue::Array(items)), Some(at)) => Ok(Cow::Borrowed(&items[at])),
        (Cow::Owned(ExprValue::Array(mut items)), Some(at)) => {
            Ok(Cow::Owned(items.swap_remove(at)))
        }
        (other, _) => {
            let value = match &*other {
                ExprValue::Array(items) => format!("array of length {}", items.len()),
                other => other.kind().map_or("null", |kind| kind.name()).to_owned(),
            };
            let index = match index {
                ExprValue::Number(_) => index.to_text(),
                other => format!("of type {}", other.kind().map_or("null", |kind| kind.name())),
            };
            Err(Kind::Index { index, value })
        }
    }
}

fn not_found_error(path: &str, key: &str, at: usize) -> ExpressionError {
    Kind::NotFound { path: path.to_owned(), key: key.to_owned() }.with_offset(at)
}
