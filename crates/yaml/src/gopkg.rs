//! Resolution of unquoted scalars as by Go's `gopkg.in/yaml.v3`.
//!
//! Differences from the core schema of YAML 1.2:
//!
//! | word | here | core schema |
//! | --- | --- | --- |
//! | `010`, `-010` | 8, -8 | 10, -10 |
//! | `08`, `09.5` | 8, 9.5 | the same |
//! | `0b11`, `-0b11`, `0B11` | 3, -3, 3 | strings |
//! | `0O10`, `-0o10`, `0X1F`, `-0x1F` | 8, -8, 31, -31 | strings |
//! | `1_000`, `0x_F`, `1_000.5` | 1000, 15, 1000.5 | strings |
//! | `.inf`, `-.Inf`, `.nan` | numbers that JSON does not have | the same |
//! | `2024-01-01` | a string, although Go reads a time | a string |
//! | `yes`, `no`, `on`, `off`, `y`, `n` | strings, and booleans where a boolean is expected | strings |
//!
//! Tested by `tests/data/yaml.jsonl` of `step-runner`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Number;

use super::node::YamlValue;
use super::scalar;

/// Spellings of numbers that JSON does not have.
const NOT_FINITE: [&str; 12] = [
    ".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf",
    "-.INF",
];

/// Returns the value of an unquoted scalar; `None` if it is a number that JSON does not have.
fn resolve<O>(word: &str) -> Option<YamlValue<O>> {
    if NOT_FINITE.contains(&word) {
        return None;
    }
    let value = scalar::null(word).or_else(|| scalar::boolean(word)).or_else(|| number(word));
    Some(value.unwrap_or_else(|| YamlValue::Text(word.to_owned())))
}

/// Returns the value of a scalar with a tag of YAML; `None` if the scalar is not of that type.
fn resolve_as<O>(tag: &str, word: &str) -> Option<YamlValue<O>> {
    match tag {
        "str" | "timestamp" => Some(YamlValue::Text(word.to_owned())),
        "null" => scalar::null(word),
        "bool" => scalar::boolean(word),
        "int" => integer(&word.replace('_', "")).map(YamlValue::Number),
        "float" => number(word),
        "binary" => binary(word).map(YamlValue::Text),
        _ => None,
    }
}

/// Returns the boolean that `yaml.v3` reads from a word of YAML 1.1, such as `yes` or `off`, where
/// it expects a boolean; `None` for other words.
pub fn boolean_text(word: &str) -> Option<bool> {
    match word {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

fn number<O>(word: &str) -> Option<YamlValue<O>> {
    if !word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let word = word.replace('_', "");
    if let Some(whole) = integer(&word) {
        return Some(YamlValue::Number(whole));
    }
    match scalar::float(&word) {
        // The sign of a zero is lost in an integer.
        Some(YamlValue::Number(zero)) if word.starts_with('-') && zero.as_f64() == Some(0.0) => {
            Number::from_f64(-0.0).map(YamlValue::Number)
        }
        other => other,
    }
}

/// Parses an integer of 64 bits with an optional sign and prefix; a zero in front is octal.
fn integer(word: &str) -> Option<Number> {
    let (is_negative, digits) = match word.as_bytes().first()? {
        b'-' => (true, &word[1..]),
        b'+' => (false, &word[1..]),
        _ => (false, word),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        // Go accepts `0b-1`, too.
        [b'0', b'b', b'-', ..] if !is_negative && word.starts_with('0') => {
            return u64::from_str_radix(&digits[3..], 2).ok().and_then(to_negative);
        }
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // The standard library would accept a sign after the prefix.
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let size = u64::from_str_radix(digits, radix).ok()?;
    if is_negative { to_negative(size) } else { Some(size.into()) }
}

fn to_negative(size: u64) -> Option<Number> {
    0_i64.checked_sub_unsigned(size).map(Number::from)
}

/// Decodes base64, whose line breaks are ignored; `None` if the bytes are not UTF-8.
fn binary(word: &str) -> Option<String> {
    let digits: String = word.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    String::from_utf8(STANDARD.decode(digits).ok()?).ok()
}

/// Dialect of YAML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YamlDialect {
    /// YAML 1.2 with its core schema, and merge keys `<<`. Other scalars as keys are read as text.
    Core,
    /// The dialect of Go's `gopkg.in/yaml.v3`: the core schema with parts of YAML 1.1, namely numbers such
    /// as `010`, `0b11` and `1_000`, `!!binary`, and merge keys `<<`. Other keys must be strings.
    Go,
}

impl YamlDialect {
    /// Returns the value of an unquoted scalar; `None` if it is a number that JSON does not have.
    pub(super) fn resolve<O>(self, word: &str) -> Option<YamlValue<O>> {
        match self {
            YamlDialect::Core => Some(scalar::resolve(word)),
            YamlDialect::Go => resolve(word),
        }
    }

    /// Returns the value of a scalar with a tag of YAML, such as `int`; `None` if the tag is unknown or the
    /// scalar is not of that type.
    pub(super) fn resolve_as<O>(self, tag: &str, word: &str) -> Option<YamlValue<O>> {
        match self {
            YamlDialect::Core => scalar::resolve_as(tag, word),
            YamlDialect::Go => resolve_as(tag, word),
        }
    }
}
