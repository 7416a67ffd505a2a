//! Values of inputs, outputs and expressions: JSON values with 64-bit floating-point numbers.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// A JSON value, as in `google.protobuf.Value`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ExprValue {
    #[default]
    Null,
    Bool(bool),
    Number(f64),
    String(String),
    Array(Vec<ExprValue>),
    /// Members of an object, sorted by name.
    Object(BTreeMap<String, ExprValue>),
}

/// Declared type of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclaredType {
    String,
    Number,
    Boolean,
    Struct,
    Array,
}

impl DeclaredType {
    /// All types, in the order of the documentation.
    pub const ALL: [DeclaredType; 5] = [
        DeclaredType::String,
        DeclaredType::Number,
        DeclaredType::Boolean,
        DeclaredType::Struct,
        DeclaredType::Array,
    ];

    /// Returns the name of the type in step files.
    pub fn name(self) -> &'static str {
        match self {
            DeclaredType::String => "string",
            DeclaredType::Number => "number",
            DeclaredType::Boolean => "boolean",
            DeclaredType::Struct => "struct",
            DeclaredType::Array => "array",
        }
    }

    /// Returns the type with this name in step files.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for DeclaredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExprValue {
    /// Returns the type of the value; `None` for null.
    pub fn kind(&self) -> Option<DeclaredType> {
        match self {
            ExprValue::Null => None,
            ExprValue::Bool(_) => Some(DeclaredType::Boolean),
            ExprValue::Number(_) => Some(DeclaredType::Number),
            ExprValue::String(_) => Some(DeclaredType::String),
            ExprValue::Array(_) => Some(DeclaredType::Array),
            ExprValue::Object(_) => Some(DeclaredType::Struct),
        }
    }

    /// Returns the value as text: a string unchanged, other values as compact JSON.
    pub fn to_text(&self) -> String {
        match self {
            ExprValue::String(text) => text.clone(),
            other => other.to_json(),
        }
    }

    /// Returns compact JSON as written by Go's `encoding/json`: sorted names, `<`, `>` and `&`
    /// escaped, numbers from 1e21 and below 1e-6 with an exponent.
    pub fn to_json(&self) -> String {
        let mut json = String::new();
        self.write_json(&mut json).expect("a string takes everything");
        json
    }

    fn write_json(&self, out: &mut String) -> fmt::Result {
        match self {
            ExprValue::Null => out.write_str("null"),
            ExprValue::Bool(flag) => write!(out, "{flag}"),
            ExprValue::Number(number) => out.write_str(&json_number(*number)),
            ExprValue::String(text) => write_json_string(text, out),
            ExprValue::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write_json(out)?;
                }
                out.write_char(']')
            }
            ExprValue::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_json_string(name, out)?;
                    out.push(':');
                    value.write_json(out)?;
                }
                out.write_char('}')
            }
        }
    }
}

fn write_json_string(text: &str, out: &mut String) -> fmt::Result {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{0}'..='\u{1f}' | '\u{2028}' | '\u{2029}' => {
                write!(out, "\\u{:04x}", u32::from(c))?;
            }
            c => out.push(c),
        }
    }
    out.write_char('"')
}

/// Formats a number as Go's `encoding/json` does.
fn json_number(number: f64) -> String {
    let size = number.abs();
    // Rust prints the shortest digits that parse to the same number, as Go does.
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{number:e}");
        if size >= 1e21 { text.replace('e', "e+") } else { text }
    } else {
        number.to_string()
    }
}

impl From<serde_json::Value> for ExprValue {
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => ExprValue::Null,
            serde_json::Value::Bool(flag) => ExprValue::Bool(flag),
            serde_json::Value::Number(number) => {
                ExprValue::Number(number.as_f64().expect("numbers are read as 64-bit ones"))
            }
            serde_json::Value::String(text) => ExprValue::String(text),
            serde_json::Value::Array(items) => {
                ExprValue::Array(items.into_iter().map(ExprValue::from).collect())
            }
            serde_json::Value::Object(members) => ExprValue::Object(
                members.into_iter().map(|(name, value)| (name, ExprValue::from(value))).collect(),
            ),
        }
    }
}

impl From<prost_types::Value> for ExprValue {
    fn from(value: prost_types::Value) -> Self {
        use prost_types::value::Kind;
        match value.kind {
            None | Some(Kind::NullValue(_)) => ExprValue::Null,
            Some(Kind::BoolValue(flag)) => ExprValue::Bool(flag),
            Some(Kind::NumberValue(number)) => ExprValue::Number(number),
            Some(Kind::StringValue(text)) => ExprValue::String(text),
            Some(Kind::ListValue(list)) => {
                ExprValue::Array(list.values.into_iter().map(ExprValue::from).collect())
            }
            Some(Kind::StructValue(members)) => ExprValue::Object(
                members.fields.into_iter().map(|(name, value)| (name, value.into())).collect(),
            ),
        }
    }
}

impl From<ExprValue> for prost_types::Value {
    fn from(value: ExprValue) -> Self {
        use prost_types::value::Kind;
        let kind = match value {
            ExprValue::Null => Kind::NullValue(0),
            ExprValue::Bool(flag) => Kind::BoolValue(flag),
            ExprValue::Number(number) => Kind::NumberValue(number),
            ExprValue::String(text) => Kind::StringValue(text),
            ExprValue::Array(items) => Kind::ListValue(prost_types::ListValue {
                values: items.into_iter().map(prost_types::Value::from).collect(),
            }),
            ExprValue::Object(members) => Kind::StructValue(prost_types::Struct {
                fields: members.into_iter().map(|(name, value)| (name, value.into())).collect(),
            }),
        };
        prost_types::Value { kind: Some(kind) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_like_in_go() {
        let cases = [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.5, "1.5"),
            (-3.0, "-3"),
            (12_345_678_901_234_567_890.0, "12345678901234567000"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.25e22, "1.25e+22"),
            (0.000_001, "0.000001"),
            (1e-7, "1e-7"),
            (-2.5e-9, "-2.5e-9"),
        ];
        for (number, text) in cases {
            assert_eq!(ExprValue::Number(number).to_text(), text);
        }
    }

    #[test]
    fn text_in_structures_is_escaped_like_in_go() {
        let json = serde_json::json!({"b": ["<&>", "é\n\u{1}"], "a": null});
        let value = ExprValue::from(json);
        assert_eq!(
            value.to_text(),
            "{\"a\":null,\"b\":[\"\\u003c\\u0026\\u003e\",\"é\\n\\u0001\"]}"
        );
        assert_eq!(ExprValue::from(prost_types::Value::from(value.clone())), value);
    }
}
