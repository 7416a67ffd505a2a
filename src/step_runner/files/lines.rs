//! Lines of step output files.

use crate::json::{self, Document, Kind, SyntaxError, SyntaxErrorKind};

use super::super::Value;
use super::error::LineError;

/// Limit of the nesting depth of values.
const MAX_DEPTH: usize = 128;

/// Parses a line into name and value.
pub(super) fn read(line: &[u8]) -> Result<(String, Value), LineError> {
    let document = Document::parse(line).map_err(|error| syntax_fault(line, error))?;
    let root = document.root();
    if !matches!(root.kind(), Kind::Object | Kind::Null) {
        return Err(LineError::NoObject(go_name(root.kind())));
    }
    let (mut name, mut value) = (None, None);
    for member in root.members() {
        // As Go's decoder: names in any case, and the last of several wins.
        let key = member.key.as_str().unwrap_or_default();
        if key.eq_ignore_ascii_case("name") {
            name = match member.value.kind() {
                Kind::Null => None,
                Kind::String => member.value.as_str(),
                kind => return Err(LineError::Name(go_name(kind))),
            };
        } else if key.eq_ignore_ascii_case("value") {
            value = Some(convert(member.value, MAX_DEPTH)?).filter(|value| *value != Value::Null);
        }
    }
    let name = name.ok_or_else(|| absent(line, "name"))?;
    if name.is_empty() {
        return Err(LineError::Empty("name"));
    }
    Ok((name.into_owned(), value.ok_or_else(|| absent(line, "value"))?))
}

/// Returns the error for a field without value: null, if the line contains its name anywhere.
///
/// GitLab's step runner distinguishes the two in this way, and clients see the difference.
fn absent(line: &[u8], field: &'static str) -> LineError {
    let quoted = format!("\"{field}\"");
    match line.windows(quoted.len()).any(|window| window == quoted.as_bytes()) {
        true => LineError::Null(field),
        false => LineError::Missing(field),
    }
}

fn convert(value: json::Value<'_>, depth: usize) -> Result<Value, LineError> {
    let inner = || depth.checked_sub(1).ok_or(LineError::TooDeep);
    Ok(match value.kind() {
        Kind::Null => Value::Null,
        Kind::Bool => Value::Bool(value.as_bool().unwrap_or_default()),
        Kind::String => Value::String(value.as_str().unwrap_or_default().into_owned()),
        Kind::Number => {
            let text = String::from_utf8_lossy(value.raw());
            match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Value::Number(number),
                _ => return Err(LineError::Range(text.into_owned())),
            }
        }
        Kind::Array => {
            let depth = inner()?;
            Value::Array(
                value.elements().map(|item| convert(item, depth)).collect::<Result<_, _>>()?,
            )
        }
        Kind::Object => {
            let depth = inner()?;
            let member = |member: json::Member<'_>| {
                let name = member.key.as_str().unwrap_or_default().into_owned();
                Ok((name, convert(member.value, depth)?))
            };
            Value::Object(value.members().map(member).collect::<Result<_, LineError>>()?)
        }
    })
}

/// Returns the name of a JSON type in Go's messages.
fn go_name(kind: Kind) -> &'static str {
    if kind == Kind::Bool { "bool" } else { kind.name() }
}

/// Converts a syntax error to that of Go's `encoding/json`.
fn syntax_fault(line: &[u8], error: SyntaxError) -> LineError {
    let mut at = error.offset;
    let place = match error.kind {
        SyntaxErrorKind::UnexpectedEnd => return LineError::End,
        SyntaxErrorKind::TooDeep => return LineError::TooDeep,
        SyntaxErrorKind::ControlCharacter => "in string literal".to_owned(),
        SyntaxErrorKind::TrailingData => "after top-level value".to_owned(),
        SyntaxErrorKind::Escape => {
            at += 1;
            let mut place = "in string escape code";
            if line.get(at) == Some(&b'u') {
                place = "in \\u hexadecimal character escape";
                at += 1;
                at += line[at..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
            }
            place.to_owned()
        }
        SyntaxErrorKind::TrailingComma => {
            at += 1;
            at += line[at..].iter().take_while(|b| b.is_ascii_whitespace()).count();
            match line.get(at) {
                Some(b'}') => "looking for beginning of object key string".to_owned(),
                _ => "looking for beginning of value".to_owned(),
            }
        }
        SyntaxErrorKind::Expected("a value") => match misspelled(&line[at..]) {
            Some((word, matched)) => {
                at += matched;
                let expected = char::from(word.as_bytes()[matched]);
                format!("in literal {word} (expecting '{expected}')")
            }
            None => "looking for beginning of value".to_owned(),
        },
        SyntaxErrorKind::Expected("a digit") => "in numeric literal".to_owned(),
        SyntaxErrorKind::Expected("`:` after the key") => "after object key".to_owned(),
        SyntaxErrorKind::Expected("`,` or `}` after the value") => {
            "after object key:value pair".to_owned()
        }
        SyntaxErrorKind::Expected("`,` or `]` after the value") => "after array element".to_owned(),
        SyntaxErrorKind::Expected(_) => "looking for beginning of object key string".to_owned(),
        _ => "looking for beginning of value".to_owned(),
    };
    match line.get(at) {
        None => LineError::End,
        Some(byte) => LineError::Character { character: quoted(*byte), place },
    }
}

/// Returns the literal that a text starts like, and how many bytes match.
///
/// `name=value` is the most frequent mistake: it starts like `null`.
fn misspelled(text: &[u8]) -> Option<(&'static str, usize)> {
    let word =
        ["null", "true", "false"].into_iter().find(|w| text.first() == w.as_bytes().first())?;
    Some((word, text.iter().zip(word.bytes()).take_while(|(a, b)| **a == *b).count()))
}

/// Returns a byte as Go quotes a character.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        0..0x20 | 0x7f..0xa0 if !b"\n\r\t".contains(&byte) => format!("'\\x{byte:02x}'"),
        _ => format!("'{}'", char::from(byte).escape_debug()),
    }
}
