//! Operators and conversions.

use std::cmp::Ordering;

use super::super::Value;
use super::error::ExpressionErrorKind as Kind;

/// Approximate size of a value without its text.
pub const NODE_BYTES: usize = size_of::<Value>();

/// Length limit of the text of a number.
const MAX_DIGITS: usize = 1024;

/// An operator before a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    Plus,
    Minus,
    Not,
}

/// An operator between two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

use Operator::{
    Add, And, Divide, Equal, Greater, GreaterEqual, Less, LessEqual, Multiply, NotEqual, Or,
    Remainder, Subtract,
};

/// Operators with their symbol and precedence.
const OPERATORS: [(Operator, &str, u8); 13] = [
    (Or, "||", 1),
    (And, "&&", 2),
    (Equal, "==", 3),
    (NotEqual, "!=", 3),
    (Less, "<", 3),
    (LessEqual, "<=", 3),
    (Greater, ">", 3),
    (GreaterEqual, ">=", 3),
    (Add, "+", 4),
    (Subtract, "-", 4),
    (Multiply, "*", 5),
    (Divide, "/", 5),
    (Remainder, "%", 5),
];

impl Operator {
    /// Returns the operator with this symbol, and its precedence.
    pub fn from_symbol(symbol: &str) -> Option<(Self, u8)> {
        let found = OPERATORS.into_iter().find(|(_, written, _)| *written == symbol);
        found.map(|(operator, _, power)| (operator, power))
    }

    fn symbol(self) -> &'static str {
        OPERATORS[self as usize].1
    }
}

impl Unary {
    pub(super) fn apply(self, value: &Value) -> Result<Value, Kind> {
        match (self, value) {
            (Unary::Not, value) => Ok(Value::Bool(!is_truthy(value))),
            (Unary::Plus, Value::Number(number)) => Ok(Value::Number(*number)),
            (Unary::Minus, Value::Number(number)) => Ok(Value::Number(-number)),
            (Unary::Plus, _) => Err(unfit("+", &[value])),
            (Unary::Minus, _) => Err(unfit("-", &[value])),
        }
    }
}

/// Applies a comparison or arithmetic operator; the evaluator handles joins, `&&` and `||`.
///
/// Adds the number of compared bytes to `work`.
pub fn apply(
    operator: Operator,
    left: &Value,
    right: &Value,
    work: &mut usize,
) -> Result<Value, Kind> {
    let holds = match operator {
        Equal => Ordering::is_eq,
        NotEqual => Ordering::is_ne,
        Less => Ordering::is_lt,
        LessEqual => Ordering::is_le,
        Greater => Ordering::is_gt,
        GreaterEqual => Ordering::is_ge,
        _ => return calculate(operator, left, right),
    };
    Ok(Value::Bool(holds(compare(left, right, work))))
}

fn calculate(operator: Operator, left: &Value, right: &Value) -> Result<Value, Kind> {
    let (Value::Number(a), Value::Number(b)) = (left, right) else {
        return Err(unfit(operator.symbol(), &[left, right]));
    };
    let number = match operator {
        Add => a + b,
        Subtract => a - b,
        Multiply => a * b,
        Divide | Remainder if *b == 0.0 => return Err(Kind::Zero),
        Divide => a / b,
        Remainder => a % b,
        _ => return Err(unfit(operator.symbol(), &[left, right])),
    };
    // JSON has no infinity.
    if number.is_finite() { Ok(Value::Number(number)) } else { Err(Kind::Range) }
}

/// Returns the error of an operator or a function that is not defined for these types.
fn unfit(operator: &'static str, values: &[&Value]) -> Kind {
    Kind::Operands { operator, operands: values.iter().map(|value| value.kind()).collect() }
}

/// Compares values: first by type; objects by length, then names, then values.
fn compare(left: &Value, right: &Value, work: &mut usize) -> Ordering {
    *work += NODE_BYTES;
    match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => a.partial_cmp(b).unwrap_or_else(|| a.total_cmp(b)),
        (Value::String(a), Value::String(b)) => compare_text(a, b, work),
        (Value::Array(a), Value::Array(b)) => {
            first_difference(a, b, |a, b| compare(a, b, work)).then_with(|| a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => (a.len().cmp(&b.len()))
            .then_with(|| first_difference(a.keys(), b.keys(), |a, b| compare_text(a, b, work)))
            .then_with(|| first_difference(a.values(), b.values(), |a, b| compare(a, b, work))),
        _ => rank(left).cmp(&rank(right)),
    }
}

fn compare_text(left: &str, right: &str, work: &mut usize) -> Ordering {
    *work += left.len().min(right.len());
    left.cmp(right)
}

fn first_difference<T>(
    left: impl IntoIterator<Item = T>,
    right: impl IntoIterator<Item = T>,
    mut compare: impl FnMut(T, T) -> Ordering,
) -> Ordering {
    let mut orders = left.into_iter().zip(right).map(|(a, b)| compare(a, b));
    orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

/// Returns whether a value is truthy.
pub fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => *number != 0.0,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

/// Converts a value to a number, for `num()`.
pub fn number(value: &Value) -> Result<Value, Kind> {
    match value {
        Value::Number(_) => Ok(value.clone()),
        Value::String(text) => {
            // Rust also parses `inf` and `nan`, and any number of zeros.
            let digits = text.len() <= MAX_DIGITS
                && text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
            match text.parse::<f64>() {
                Ok(number) if digits && number.is_finite() => Ok(Value::Number(number)),
                Ok(_) if digits => Err(Kind::Range),
                _ => Err(Kind::Number(text.chars().take(40).collect())),
            }
        }
        _ => Err(unfit("num", &[value])),
    }
}
