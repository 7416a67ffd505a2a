//! Operators and type conversions of expressions.

use std::cmp::Ordering;

use super::super::ExprValue;
use super::error::ExpressionErrorKind as Kind;

/// Approximate size of a value in bytes, without its text.
pub const NODE_BYTES: usize = size_of::<ExprValue>();

/// Maximum length in bytes of a text that `num()` converts.
const MAX_DIGITS: usize = 1024;

/// An operator before a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOperator {
    Plus,
    Minus,
    Not,
}

/// An operator between two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOperator {
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

use BinaryOperator::{
    Add, And, Divide, Equal, Greater, GreaterEqual, Less, LessEqual, Multiply, NotEqual, Or,
    Remainder, Subtract,
};

/// Operators with their symbol and precedence, in the order of the enum.
const OPERATORS: [(BinaryOperator, &str, u8); 13] = [
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

impl BinaryOperator {
    /// Returns the operator with this symbol, and its precedence.
    pub fn from_symbol(symbol: &str) -> Option<(Self, u8)> {
        let found = OPERATORS.into_iter().find(|(_, written, _)| *written == symbol);
        found.map(|(operator, _, power)| (operator, power))
    }

    fn symbol(self) -> &'static str {
        OPERATORS[self as usize].1
    }
}

impl UnaryOperator {
    pub(super) fn apply(self, value: &ExprValue) -> Result<ExprValue, Kind> {
        match (self, value) {
            (UnaryOperator::Not, value) => Ok(ExprValue::Bool(!is_truthy(value))),
            (UnaryOperator::Plus, ExprValue::Number(number)) => Ok(ExprValue::Number(*number)),
            (UnaryOperator::Minus, ExprValue::Number(number)) => Ok(ExprValue::Number(-number)),
            (UnaryOperator::Plus, _) => Err(operand_type_error("+", &[value])),
            (UnaryOperator::Minus, _) => Err(operand_type_error("-", &[value])),
        }
    }
}

/// Applies a comparison or arithmetic operator. The evaluator handles string concatenation, `&&`
/// and `||`.
///
/// Adds the number of compared bytes to `work`.
pub fn apply(
    operator: BinaryOperator,
    left: &ExprValue,
    right: &ExprValue,
    work: &mut usize,
) -> Result<ExprValue, Kind> {
    let holds = match operator {
        Equal => Ordering::is_eq,
        NotEqual => Ordering::is_ne,
        Less => Ordering::is_lt,
        LessEqual => Ordering::is_le,
        Greater => Ordering::is_gt,
        GreaterEqual => Ordering::is_ge,
        _ => return calculate(operator, left, right),
    };
    Ok(ExprValue::Bool(holds(compare(left, right, work))))
}

fn calculate(
    operator: BinaryOperator,
    left: &ExprValue,
    right: &ExprValue,
) -> Result<ExprValue, Kind> {
    let (ExprValue::Number(a), ExprValue::Number(b)) = (left, right) else {
        return Err(operand_type_error(operator.symbol(), &[left, right]));
    };
    let number = match operator {
        Add => a + b,
        Subtract => a - b,
        Multiply => a * b,
        Divide | Remainder if *b == 0.0 => return Err(Kind::Zero),
        Divide => a / b,
        Remainder => a % b,
        _ => return Err(operand_type_error(operator.symbol(), &[left, right])),
    };
    // JSON has no infinity.
    if number.is_finite() { Ok(ExprValue::Number(number)) } else { Err(Kind::Range) }
}

/// Returns the error of an operator or a function that is not defined for these types.
fn operand_type_error(operator: &'static str, values: &[&ExprValue]) -> Kind {
    Kind::Operands { operator, operands: values.iter().map(|value| value.kind()).collect() }
}

/// Compares values: by type first, objects by length, names and then values. Adds the number of
/// compared bytes to `work`.
fn compare(left: &ExprValue, right: &ExprValue, work: &mut usize) -> Ordering {
    *work += NODE_BYTES;
    match (left, right) {
        (ExprValue::Bool(a), ExprValue::Bool(b)) => a.cmp(b),
        (ExprValue::Number(a), ExprValue::Number(b)) => {
            a.partial_cmp(b).unwrap_or_else(|| a.total_cmp(b))
        }
        (ExprValue::String(a), ExprValue::String(b)) => compare_text(a, b, work),
        (ExprValue::Array(a), ExprValue::Array(b)) => {
            first_difference(a, b, |a, b| compare(a, b, work)).then_with(|| a.len().cmp(&b.len()))
        }
        (ExprValue::Object(a), ExprValue::Object(b)) => (a.len().cmp(&b.len()))
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

fn rank(value: &ExprValue) -> u8 {
    match value {
        ExprValue::Null => 0,
        ExprValue::Bool(_) => 1,
        ExprValue::Number(_) => 2,
        ExprValue::String(_) => 3,
        ExprValue::Array(_) => 4,
        ExprValue::Object(_) => 5,
    }
}

/// Returns whether a value is truthy: not `false`, `""`, `0`, `[]`, `{}` or `null`.
pub fn is_truthy(value: &ExprValue) -> bool {
    match value {
        ExprValue::Null => false,
        ExprValue::Bool(flag) => *flag,
        ExprValue::Number(number) => *number != 0.0,
        ExprValue::String(text) => !text.is_empty(),
        ExprValue::Array(items) => !items.is_empty(),
        ExprValue::Object(members) => !members.is_empty(),
    }
}

/// Converts a value to a number, for `num()`.
pub fn number(value: &ExprValue) -> Result<ExprValue, Kind> {
    match value {
        ExprValue::Number(_) => Ok(value.clone()),
        ExprValue::String(text) => {
            // Rust also parses `inf` and `nan`, and any number of zeros.
            let digits = text.len() <= MAX_DIGITS
                && text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
            match text.parse::<f64>() {
                Ok(number) if digits && number.is_finite() => Ok(ExprValue::Number(number)),
                Ok(_) if digits => Err(Kind::Range),
                _ => Err(Kind::Number(text.chars().take(40).collect())),
            }
        }
        _ => Err(operand_type_error("num", &[value])),
    }
}
