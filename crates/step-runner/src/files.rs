//! Parses the two files that a step writes: the output file with its outputs, and the export file
//! with environment variables for later steps.
//!
//! Each contains one JSON object per line, `{"name": …, "value": …}`. The last value of a name
//! wins.

use std::collections::BTreeMap;

use oci_hooks::json::{self, JsonDocument, JsonKind, SyntaxError, SyntaxErrorKind};

use super::document::ValueSpec;
use super::{DeclaredType, ExprValue};

/// Size limit of an output or export file in bytes. To detect a larger file, callers need to read
/// only one byte more.
pub const MAX_BYTES: usize = 10 << 20;

/// Parses an output file, checks the outputs against the declared ones, and adds defaults.
pub fn read_outputs(
    content: &[u8],
    declared: &BTreeMap<String, ValueSpec>,
) -> Result<BTreeMap<String, ExprValue>, OutputFileError> {
    let file = "output file";
    let error = |key: &str, error| OutputFileError::Key { file, key: key.to_owned(), error };
    let mut outputs = read(content, file, |name| declared.get(name).map(|output| output.kind))?;
    for (name, value) in &outputs {
        let declared =
            declared.get(name).ok_or_else(|| error(name, OutputValueError::Unexpected))?.kind;
        // A value cannot be null: lines with null were rejected.
        if let Some(received) = value.kind().filter(|kind| *kind != declared) {
            return Err(error(name, OutputValueError::Type { declared, received }));
        }
    }
    for (name, output) in declared {
        if !outputs.contains_key(name) {
            let default = output.default.clone();
            outputs.insert(
                name.clone(),
                default.ok_or_else(|| error(name, OutputValueError::Missing))?,
            );
        }
    }
    Ok(outputs)
}

/// Parses an export file: environment variables for later steps.
pub fn read_exports(content: &[u8]) -> Result<BTreeMap<String, String>, OutputFileError> {
    let file = "env file";
    let text = |(key, value): (String, ExprValue)| match (&value, value.kind()) {
        (ExprValue::Array(_) | ExprValue::Object(_), Some(kind)) => {
            Err(OutputFileError::Key { file, key, error: OutputValueError::NoText(kind) })
        }
        // Without an exponent, unlike in JSON.
        (ExprValue::Number(number), _) => Ok((key, number.to_string())),
        _ => Ok((key, value.to_text())),
    };
    read(content, file, |_| None)?.into_iter().map(text).collect()
}

fn read(
    content: &[u8],
    file: &'static str,
    kind: impl Fn(&str) -> Option<DeclaredType>,
) -> Result<BTreeMap<String, ExprValue>, OutputFileError> {
    if content.len() > MAX_BYTES {
        return Err(OutputFileError::TooLarge { file, limit: MAX_BYTES });
    }
    let lines = content.split(|&byte| byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && *line != b"\r")
        .map(|(index, line)| {
            read_line(line).map_err(|error| {
                let hint = hint(line, &kind);
                OutputFileError::Line { file, line: index + 1, error, hint }
            })
        })
        .collect()
}

/// Returns a hint for a line `name=value`, which is shell syntax: the line in JSON.
///
/// The line may contain a secret: the hint repeats only the name, and only that of a declared
/// output.
fn hint(line: &[u8], kind: impl Fn(&str) -> Option<DeclaredType>) -> Option<String> {
    let line = std::str::from_utf8(line).ok()?;
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, _) = line.split_once('=')?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(is_word) {
        return None;
    }
    let kind = kind(name);
    let name = if kind.is_some() { name } else { "NAME" };
    let value = match kind {
        Some(DeclaredType::Number) => "1",
        Some(DeclaredType::Boolean) => "true",
        Some(DeclaredType::Struct) => "{}",
        Some(DeclaredType::Array) => "[]",
        Some(DeclaredType::String) | None => "\"…\"",
    };
    Some(format!("{{\"name\": \"{name}\", \"value\": {value}}}"))
}

/// Limit of the nesting depth of values.
const MAX_DEPTH: usize = 128;

/// Parses a line into name and value.
fn read_line(line: &[u8]) -> Result<(String, ExprValue), OutputLineError> {
    let document = JsonDocument::parse(line).map_err(|error| syntax_fault(line, error))?;
    let root = document.root();
    if !matches!(root.kind(), JsonKind::Object | JsonKind::Null) {
        return Err(OutputLineError::NoObject(go_name(root.kind())));
    }
    let (mut name, mut value) = (None, None);
    for member in root.members() {
        // Like Go's decoder: names are case-insensitive, and the last duplicate wins.
        let key = member.key.as_str().unwrap_or_default();
        if key.eq_ignore_ascii_case("name") {
            name = match member.value.kind() {
                JsonKind::Null => None,
                JsonKind::String => member.value.as_str(),
                kind => return Err(OutputLineError::Name(go_name(kind))),
            };
        } else if key.eq_ignore_ascii_case("value") {
            value =
                Some(convert(member.value, MAX_DEPTH)?).filter(|value| *value != ExprValue::Null);
        }
    }
    let name = name.ok_or_else(|| absent_error(line, "name"))?;
    if name.is_empty() {
        return Err(OutputLineError::Empty("name"));
    }
    Ok((name.into_owned(), value.ok_or_else(|| absent_error(line, "value"))?))
}

/// Returns the error for a field without value: `Null` if the line contains its name anywhere, else
/// `Missing`.
///
/// GitLab's step runner distinguishes the two errors in this way, and clients see the difference.
fn absent_error(line: &[u8], field: &'static str) -> OutputLineError {
    let quoted = format!("\"{field}\"");
    match line.windows(quoted.len()).any(|window| window == quoted.as_bytes()) {
        true => OutputLineError::Null(field),
        false => OutputLineError::Missing(field),
    }
}

fn convert(value: json::JsonValue<'_>, depth: usize) -> Result<ExprValue, OutputLineError> {
    let inner = || depth.checked_sub(1).ok_or(OutputLineError::TooDeep);
    Ok(match value.kind() {
        JsonKind::Null => ExprValue::Null,
        JsonKind::Bool => ExprValue::Bool(value.as_bool().unwrap_or_default()),
        JsonKind::String => ExprValue::String(value.as_str().unwrap_or_default().into_owned()),
        JsonKind::Number => {
            let text = String::from_utf8_lossy(value.raw());
            match text.parse::<f64>() {
                Ok(number) if number.is_finite() => ExprValue::Number(number),
                _ => return Err(OutputLineError::Range(text.into_owned())),
            }
        }
        JsonKind::Array => {
            let depth = inner()?;
            ExprValue::Array(
                value.elements().map(|item| convert(item, depth)).collect::<Result<_, _>>()?,
            )
        }
        JsonKind::Object => {
            let depth = inner()?;
            let member = |member: json::JsonMember<'_>| {
                let name = member.key.as_str().unwrap_or_default().into_owned();
                Ok((name, convert(member.value, depth)?))
            };
            ExprValue::Object(value.members().map(member).collect::<Result<_, OutputLineError>>()?)
        }
    })
}

/// Returns the name of a JSON type in Go's messages.
fn go_name(kind: JsonKind) -> &'static str {
    if kind == JsonKind::Bool { "bool" } else { kind.name() }
}

/// Converts a syntax error to the corresponding one of Go's `encoding/json`.
fn syntax_fault(line: &[u8], error: SyntaxError) -> OutputLineError {
    let mut at = error.offset;
    let kind = match error.kind {
        SyntaxErrorKind::Utf16(expected) | SyntaxErrorKind::QuotationMark(expected) => {
            SyntaxErrorKind::Expected(expected)
        }
        kind => kind,
    };
    let place = match kind {
        SyntaxErrorKind::UnexpectedEnd => return OutputLineError::End,
        SyntaxErrorKind::TooDeep => return OutputLineError::TooDeep,
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
        SyntaxErrorKind::Expected("a value") => match find_misspelled_literal(&line[at..]) {
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
        None => OutputLineError::End,
        Some(byte) => OutputLineError::Character { character: quote_byte(*byte), place },
    }
}

/// Returns the JSON literal that begins with the same byte as a text, and the number of bytes that
/// match.
///
/// `name=value` is the most frequent mistake: it starts like `null`.
fn find_misspelled_literal(text: &[u8]) -> Option<(&'static str, usize)> {
    let word =
        ["null", "true", "false"].into_iter().find(|w| text.first() == w.as_bytes().first())?;
    Some((word, text.iter().zip(word.bytes()).take_while(|(a, b)| **a == *b).count()))
}

/// Returns a byte as Go quotes a character.
fn quote_byte(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        0..0x20 | 0x7f..0xa0 if !b"\n\r\t".contains(&byte) => format!("'\\x{byte:02x}'"),
        _ => format!("'{}'", char::from(byte).escape_debug()),
    }
}

/// An error in an output file or export file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputFileError {
    #[error("read {file}: failed to unmarshal JSON at line {line}: {error}{}", suggestion(hint.as_deref()))]
    Line {
        file: &'static str,
        line: usize,
        error: OutputLineError,
        /// The line that the step probably intended to write.
        hint: Option<String>,
    },
    /// A name or its value is invalid.
    #[error("read {file}: key {key:?}: {error}")]
    Key { file: &'static str, key: String, error: OutputValueError },
    /// The file is too large.
    #[error("read {file}: larger than {limit} bytes")]
    TooLarge {
        file: &'static str,
        /// Size limit of the file in bytes.
        limit: usize,
    },
}

fn suggestion(line: Option<&str>) -> String {
    line.map_or(String::new(), |line| format!(": write {line}"))
}

/// Kinds of errors in a line of an output or export file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputLineError {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid character {character} {place}")]
    Character {
        /// The character, quoted as in Go.
        character: String,
        place: String,
    },
    #[error("exceeded max depth")]
    TooDeep,
    #[error("json: cannot unmarshal {0} into Go value of type runner.StepFileLine")]
    NoObject(&'static str),
    /// The name is not a string.
    #[error("json: cannot unmarshal {0} into Go struct field StepFileLine.name of type string")]
    Name(&'static str),
    #[error("json: cannot unmarshal number {0} into Go value of type float64")]
    Range(String),
    #[error("\"{0}\" field is missing")]
    Missing(&'static str),
    #[error("\"{0}\" field value is null")]
    Null(&'static str),
    #[error("\"{0}\" field value is empty")]
    Empty(&'static str),
}

/// Kinds of errors in a name or its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputValueError {
    /// An output that the step does not declare.
    #[error("unexpected output, remove from step outputs or define in step specification")]
    Unexpected,
    /// A value that is not of the declared type.
    #[error(
        "mismatched types, declared as \"{declared}\" in step specification and received from step as type \"{received}\""
    )]
    Type { declared: DeclaredType, received: DeclaredType },
    /// A declared output without value or default.
    #[error("missing output, add to step outputs or remove from step specification")]
    Missing,
    /// An exported value that cannot be the value of an environment variable.
    #[error("cannot convert value type \"{0}\" to string")]
    NoText(DeclaredType),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn parse_declared(outputs: &serde_json::Value) -> BTreeMap<String, ValueSpec> {
        let output = |spec: &serde_json::Value| ValueSpec {
            default: spec.get("default").cloned().map(ExprValue::from),
            ..ValueSpec::new(DeclaredType::from_name(spec["type"].as_str().unwrap()).unwrap())
        };
        outputs
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, spec)| (name.clone(), output(spec)))
            .collect()
    }

    #[test]
    fn output_files_are_parsed_like_by_gitlab() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stepfiles.jsonl");
        let mut count = 0;
        for line in fs::read_to_string(path).unwrap().lines() {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            let content = case["content"].as_str().unwrap().as_bytes();
            let (key, result) = if case["mode"] == "outputs" {
                let outputs = read_outputs(content, &parse_declared(&case["outputs"]));
                ("outputs", outputs.map(ExprValue::Object))
            } else {
                let text = |(name, text)| (name, ExprValue::String(text));
                let exports = read_exports(content);
                ("env", exports.map(|env| ExprValue::Object(env.into_iter().map(text).collect())))
            };
            let expected = match case["expected"].get("error") {
                Some(error) => Err(error.as_str().unwrap().to_owned()),
                None => Ok(ExprValue::from(case["expected"][key].clone())),
            };
            // Our message may end with the correct form of the line.
            let without_hint = |error: OutputFileError| {
                let text = error.to_string();
                text.split(": write {").next().unwrap().to_owned()
            };
            assert_eq!(result.map_err(without_hint), expected, "{}", case["id"]);
            count += 1;
        }
        assert_eq!(count, 29);
    }

    #[test]
    fn json_errors_have_the_text_of_go() {
        for (line, message) in [
            (
                "name=value",
                "invalid character 'a' in literal null (expecting 'u'): write {\"name\": \"NAME\", \"value\": \"…\"}",
            ),
            (
                "export A=b",
                "invalid character 'e' looking for beginning of value: write {\"name\": \"NAME\", \"value\": \"…\"}",
            ),
            ("fals", "unexpected end of JSON input"),
            ("tru3", "invalid character '3' in literal true (expecting 'e')"),
            ("{", "unexpected end of JSON input"),
            ("{\"name\":\"a", "unexpected end of JSON input"),
            ("{'a':1}", "invalid character '\\'' looking for beginning of object key string"),
            ("{\"name\" 1}", "invalid character '1' after object key"),
            ("{\"name\":\"a\" 1}", "invalid character '1' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1, ]", "invalid character ']' looking for beginning of value"),
            ("{\"a\":1, }", "invalid character '}' looking for beginning of object key string"),
            ("\"a\tb\"", "invalid character '\\t' in string literal"),
            ("\"\u{1}\"", "invalid character '\\x01' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u12\"", "invalid character '\"' in \\u hexadecimal character escape"),
            ("-a", "invalid character 'a' in numeric literal"),
            ("# A", "invalid character '#' looking for beginning of value"),
            ("é", "invalid character 'Ã' looking for beginning of value"),
            ("true", "json: cannot unmarshal bool into Go value of type runner.StepFileLine"),
            (
                "{\"name\":\"a\",\"value\":1e999}",
                "json: cannot unmarshal number 1e999 into Go value of type float64",
            ),
            ("{\"name\":\"\",\"value\":1}", "\"name\" field value is empty"),
            ("{\"name\":\"a\",\"value\":null}", "\"value\" field value is null"),
            ("{\"name\":\"a\"}", "\"value\" field is missing"),
        ] {
            let error = read_exports(format!("\n{line}").as_bytes()).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("read env file: failed to unmarshal JSON at line 2: {message}"),
                "{line}"
            );
        }
    }

    #[test]
    fn field_names_are_case_insensitive_and_the_last_value_applies() {
        let content =
            b"\r\n{\"NAME\":\"A\",\"Value\":1,\"more\":[]}\r\n\n{\"name\":\"A\",\"value\":1e21}\n";
        let exports = read_exports(content).unwrap();
        assert_eq!(
            exports,
            BTreeMap::from([("A".to_owned(), "1000000000000000000000".to_owned())])
        );
    }

    #[test]
    fn outputs_must_be_declared() {
        let outputs = parse_declared(&json!({"a": {"type": "string"}}));
        let error =
            |content: &str| read_outputs(content.as_bytes(), &outputs).unwrap_err().to_string();
        assert_eq!(
            error("{\"name\":\"q\",\"value\":1}"),
            "read output file: key \"q\": unexpected output, remove from step outputs or define in step specification"
        );
        assert_eq!(
            error(""),
            "read output file: key \"a\": missing output, add to step outputs or remove from step specification"
        );
        assert_eq!(
            read_exports(b"{\"name\":\"a\",\"value\":{}}").unwrap_err().to_string(),
            "read env file: key \"a\": cannot convert value type \"struct\" to string"
        );
    }

    #[test]
    fn file_size_and_nesting_are_limited_but_not_line_length() {
        let long = "x".repeat(MAX_BYTES - 22);
        let content = format!("{{\"name\":\"A\",\"value\":\"{long}\"}}");
        let content = content.as_bytes();
        assert_eq!(content.len(), MAX_BYTES + 1);
        assert_eq!(
            read_exports(content),
            Err(OutputFileError::TooLarge { file: "env file", limit: MAX_BYTES })
        );
        let content = format!("{{\"name\":\"A\",\"value\":\"{}\"}}", &long[1..]);
        assert_eq!(read_exports(content.as_bytes()).unwrap()["A"].len(), long.len() - 1);

        let nested = |depth| {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            format!("{{\"name\":\"A\",\"value\":{open}{close}}}")
        };
        let outputs = parse_declared(&json!({"A": {"type": "array"}}));
        assert!(read_outputs(nested(128).as_bytes(), &outputs).is_ok());
        for depth in [129, 9_000, 100_000] {
            let error = read_outputs(nested(depth).as_bytes(), &outputs).unwrap_err().to_string();
            assert!(error.ends_with("line 1: exceeded max depth"), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_or_rejected(content in proptest::collection::vec(0u8.., 0..200)) {
            if let Err(error) = read_exports(&content) {
                proptest::prop_assert!(error.to_string().starts_with("read env file: "));
            }
        }

        #[test]
        fn written_lines_are_parsed(
            written in proptest::collection::btree_map(".+", ".*", 0..8),
        ) {
            let line = |(name, value): (&String, &String)| json!({"name": name, "value": value}).to_string();
            let content = written.iter().map(line).collect::<Vec<_>>().join("\n");
            proptest::prop_assert_eq!(read_exports(content.as_bytes()).unwrap(), written);
        }
    }

    #[test]
    fn shell_syntax_is_answered_with_the_correct_line() {
        let outputs = serde_json::json!({"size": {"type": "number"}, "s": {"type": "struct"}, "t": {"type": "string"}});
        let declared = parse_declared(&outputs);
        for (line, right) in [
            ("size=5", r#"{"name": "size", "value": 1}"#),
            ("s=[]", r#"{"name": "s", "value": {}}"#),
            ("t=5", r#"{"name": "t", "value": "…"}"#),
            // An undeclared name may be a secret.
            ("c2VjcmV0=", r#"{"name": "NAME", "value": "…"}"#),
        ] {
            let error = read_outputs(line.as_bytes(), &declared).unwrap_err().to_string();
            assert!(error.ends_with(&format!(": write {right}")), "{error}");
        }
        let error = read_outputs(b"size 5", &declared).unwrap_err().to_string();
        assert!(!error.contains("write"), "{error}");
    }
}
