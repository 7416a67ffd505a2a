//! The syntax check: text in, flat list of nodes out.

use std::fmt;

use super::document::{JsonKind, JsonNode};

/// Maximum nesting of arrays and objects, as in Go.
const MAX_DEPTH: usize = 10_000;

/// Parses one JSON value with nothing but white space around it.
pub fn parse(text: &[u8]) -> Result<Vec<JsonNode>, SyntaxError> {
    // The offset of the end must fit into `u32`, too.
    if text.len() >= u32::MAX as usize {
        return Err(SyntaxError { kind: SyntaxErrorKind::TooLong, offset: 0 });
    }
    let mut parser =
        JsonParser { text, at: 0, nodes: Vec::with_capacity(text.len() / 12), open: Vec::new() };
    if text.starts_with(b"\xef\xbb\xbf") {
        return parser.fail(SyntaxErrorKind::ByteOrderMark);
    }
    parser.document()?;
    Ok(parser.nodes)
}

struct JsonParser<'t> {
    text: &'t [u8],
    at: usize,
    nodes: Vec<JsonNode>,
    /// The arrays and objects around the current position, as indices into `nodes`.
    open: Vec<u32>,
}

impl JsonParser<'_> {
    fn document(&mut self) -> Result<(), SyntaxError> {
        self.skip_space();
        self.value()?;
        // After each value, close finished containers or read the next item, until none is open.
        while let Some(&container) = self.open.last() {
            let is_object = self.nodes[container as usize].kind == JsonKind::Object;
            let close = if is_object { b'}' } else { b']' };
            self.skip_space();
            match self.peek() {
                Some(b',') => {
                    let comma = self.at;
                    self.at += 1;
                    self.skip_space();
                    if self.peek() == Some(close) {
                        self.at = comma;
                        return self.fail(SyntaxErrorKind::TrailingComma);
                    }
                    self.next_item(is_object)?;
                }
                Some(byte) if byte == close => self.close(),
                _ if is_object => return self.expected_error("`,` or `}` after the value"),
                _ => return self.expected_error("`,` or `]` after the value"),
            }
        }
        self.skip_space();
        match self.peek() {
            None => Ok(()),
            Some(b'/' | b'#') => self.fail(SyntaxErrorKind::Comment),
            Some(_) => self.fail(SyntaxErrorKind::TrailingData),
        }
    }

    /// Reads the next item of an array or object: an element, or a key and its value. Of a nested
    /// array or object only the start is read: see [`Self::value`].
    fn next_item(&mut self, in_object: bool) -> Result<(), SyntaxError> {
        if in_object {
            self.key("a key in double quotes")?;
        }
        self.value()
    }

    /// Reads a key, its colon and the space after it.
    fn key(&mut self, expected: &'static str) -> Result<(), SyntaxError> {
        if self.peek() != Some(b'"') {
            return self.expected_error(expected);
        }
        self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return self.expected_error("`:` after the key");
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// Reads a scalar, or an empty array or object. Enters any other array or object, and reads its
    /// first value in the same way.
    fn value(&mut self) -> Result<(), SyntaxError> {
        loop {
            match self.peek() {
                Some(b'"') => return self.string(),
                Some(b'-' | b'0'..=b'9') => return self.number(),
                Some(b't') => return self.literal(b"true", JsonKind::Bool),
                Some(b'f') => return self.literal(b"false", JsonKind::Bool),
                Some(b'n') => return self.literal(b"null", JsonKind::Null),
                Some(open @ (b'{' | b'[')) => {
                    let is_object = open == b'{';
                    self.enter(if is_object { JsonKind::Object } else { JsonKind::Array })?;
                    self.skip_space();
                    if self.peek() == Some(if is_object { b'}' } else { b']' }) {
                        self.close();
                        return Ok(());
                    }
                    if is_object {
                        self.key("a key in double quotes or `}`")?;
                    }
                }
                _ => return self.expected_error("a value"),
            }
        }
    }

    fn enter(&mut self, kind: JsonKind) -> Result<(), SyntaxError> {
        if self.open.len() == MAX_DEPTH {
            return self.fail(SyntaxErrorKind::TooDeep);
        }
        let index = position(self.nodes.len());
        self.push(kind, self.at, self.at);
        self.open.push(index);
        self.at += 1;
        Ok(())
    }

    fn close(&mut self) {
        self.at += 1;
        if let Some(index) = self.open.pop() {
            let next = position(self.nodes.len());
            let node = &mut self.nodes[index as usize];
            node.end = position(self.at);
            node.next = next;
        }
    }

    fn push(&mut self, kind: JsonKind, start: usize, end: usize) {
        let next = position(self.nodes.len() + 1);
        self.nodes.push(JsonNode { kind, start: position(start), end: position(end), next });
    }

    fn string(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None => return self.fail(SyntaxErrorKind::UnexpectedEnd),
                Some(b'"') => break,
                Some(b'\\') => self.escape()?,
                Some(0..0x20) => return self.fail(SyntaxErrorKind::ControlCharacter),
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        self.push(JsonKind::String, start, self.at);
        Ok(())
    }

    fn escape(&mut self) -> Result<(), SyntaxError> {
        match self.text.get(self.at + 1) {
            None => {
                self.at += 1;
                self.fail(SyntaxErrorKind::UnexpectedEnd)
            }
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => match self.text.get(self.at + 2..self.at + 6) {
                Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => {
                    self.at += 6;
                    Ok(())
                }
                _ => self.fail(SyntaxErrorKind::Escape),
            },
            Some(_) => self.fail(SyntaxErrorKind::Escape),
        }
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return self.expected_error("a digit"),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        self.push(JsonKind::Number, start, self.at);
        Ok(())
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        let count = self.text[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { self.expected_error("a digit") } else { Ok(()) }
    }

    fn literal(&mut self, word: &[u8], kind: JsonKind) -> Result<(), SyntaxError> {
        if !self.text[self.at..].starts_with(word) {
            return self.expected_error("a value");
        }
        self.push(kind, self.at, self.at + word.len());
        self.at += word.len();
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    fn expected_error<T>(&self, what: &'static str) -> Result<T, SyntaxError> {
        self.fail(match self.peek() {
            None => SyntaxErrorKind::UnexpectedEnd,
            Some(b'/' | b'#') => SyntaxErrorKind::Comment,
            Some(_) if is_utf16(self.text) => SyntaxErrorKind::Utf16(what),
            Some(_) if starts_with_quotation_mark(&self.text[self.at..]) => {
                SyntaxErrorKind::QuotationMark(what)
            }
            Some(_) => SyntaxErrorKind::Expected(what),
        })
    }

    fn fail<T>(&self, kind: SyntaxErrorKind) -> Result<T, SyntaxError> {
        Err(SyntaxError { kind, offset: self.at })
    }
}

/// Converts a byte offset to `u32`; [`parse`] rejects texts that are too long for this.
#[expect(clippy::cast_possible_truncation, reason = "the text is shorter than u32::MAX")]
fn position(at: usize) -> u32 {
    at as u32
}

/// Returns whether a text is UTF-16, by its byte order mark or the zero byte of its first character.
fn is_utf16(text: &[u8]) -> bool {
    matches!(text, [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, _, ..] | [_, 0, ..])
}

fn starts_with_quotation_mark(text: &[u8]) -> bool {
    ["'", "`", "‘", "’", "‚", "“", "”", "„", "«", "»"]
        .iter()
        .any(|mark| text.starts_with(mark.as_bytes()))
}

/// A JSON syntax error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    pub kind: SyntaxErrorKind,
    /// Byte offset of the error.
    pub offset: usize,
}

/// Kinds of JSON syntax errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SyntaxErrorKind {
    /// The text ends inside a value, or is empty.
    UnexpectedEnd,
    /// Another token is expected here; the string describes it.
    Expected(&'static str),
    /// The comma before `}` or `]`.
    TrailingComma,
    /// A `//`, `/*` or `#` comment.
    Comment,
    /// The byte order mark, which Go does not skip.
    ByteOrderMark,
    /// Text in UTF-16, where another token is expected.
    Utf16(&'static str),
    /// A quotation mark other than `"`, where another token is expected.
    QuotationMark(&'static str),
    /// An unescaped control character in a string.
    ControlCharacter,
    /// An invalid escape sequence in a string.
    Escape,
    /// More text after the value.
    TrailingData,
    /// Nested deeper than 10 000 levels.
    TooDeep,
    /// Longer than 4 GiB.
    TooLong,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SyntaxErrorKind::UnexpectedEnd => f.write_str("unexpected end of JSON input"),
            SyntaxErrorKind::Expected(what) => write!(f, "expected {what}"),
            SyntaxErrorKind::TrailingComma => f.write_str("trailing comma"),
            SyntaxErrorKind::Comment => f.write_str("comment in JSON"),
            SyntaxErrorKind::ByteOrderMark => f.write_str("byte order mark before JSON"),
            SyntaxErrorKind::Utf16(_) => f.write_str("the text is UTF-16, not UTF-8"),
            SyntaxErrorKind::QuotationMark(what) => {
                write!(f, "expected {what}, found a typographic or single quotation mark")
            }
            SyntaxErrorKind::ControlCharacter => {
                f.write_str("unescaped control character in string")
            }
            SyntaxErrorKind::Escape => f.write_str("invalid escape in string"),
            SyntaxErrorKind::TrailingData => f.write_str("trailing data after the JSON value"),
            SyntaxErrorKind::TooDeep => f.write_str("nested deeper than 10000 levels"),
            SyntaxErrorKind::TooLong => f.write_str("longer than 4 GiB"),
        }
    }
}

impl std::error::Error for SyntaxError {}

impl SyntaxErrorKind {
    /// Returns a hint for fixing the error.
    pub fn hint(self) -> Option<&'static str> {
        Some(match self {
            SyntaxErrorKind::TrailingComma => "remove the comma: JSON has none after the last item",
            SyntaxErrorKind::Comment => "JSON has no comments: remove it",
            SyntaxErrorKind::ByteOrderMark => "save the file as UTF-8 without a byte order mark",
            SyntaxErrorKind::Utf16(_) => "save the file as UTF-8",
            SyntaxErrorKind::QuotationMark(_) => "strings are in straight double quotes: \"",
            SyntaxErrorKind::ControlCharacter => {
                "write line breaks in strings as \\n, tabs as \\t, others as \\u00XX"
            }
            SyntaxErrorKind::Escape => {
                "a backslash in a regular expression is written twice in JSON: \"\\\\.\""
            }
            SyntaxErrorKind::TrailingData => "a hook file holds one JSON object and nothing else",
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &[u8]) -> SyntaxErrorKind {
        parse(text).unwrap_err().kind
    }

    #[test]
    fn parser_accepts_valid_json_of_rfc_8259() {
        for text in [
            " null\r\n",
            "[]",
            "{}",
            "[[],{}]",
            "-0",
            "0.5e+10",
            "1E400",
            r#""\ud800\"\/""#,
            "\"\x7f\"",
            r#"{"a":{"b":[1,2]},"a":[]}"#,
        ] {
            assert!(parse(text.as_bytes()).is_ok(), "{text}");
        }
        assert!(parse(b"\"\xff\xfe\"").is_ok(), "invalid UTF-8 in a string");
    }

    #[test]
    fn parser_rejects_invalid_json_of_rfc_8259() {
        for text in [
            "",
            " ",
            "{",
            "[1",
            "[1 2]",
            "{\"a\" 1}",
            "{a:1}",
            "{'a':1}",
            "01",
            "1.",
            "-",
            "1e",
            ".5",
            "+1",
            "NaN",
            "nul",
            "\"",
            "\"\\",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "[1,]",
            "{\"a\":1,}",
            "[,1]",
            "1 2",
            "[]]",
            "\u{a0}1",
            "{\"a\":}",
        ] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(parse(b"\xff1").is_err(), "invalid UTF-8 outside a string");
    }

    #[test]
    fn errors_name_common_mistakes() {
        assert_eq!(kind(b""), SyntaxErrorKind::UnexpectedEnd);
        assert_eq!(kind(b"{\"a\":1,\n}"), SyntaxErrorKind::TrailingComma);
        assert_eq!(kind(b"{ // x\n}"), SyntaxErrorKind::Comment);
        assert_eq!(kind(b"{} # x"), SyntaxErrorKind::Comment);
        assert_eq!(kind(b"\xef\xbb\xbf{}"), SyntaxErrorKind::ByteOrderMark);
        for text in [&b"\xff\xfe{\0}\0"[..], b"\xfe\xff\0{\0}", b"{\0}\0", b"\0{\0}"] {
            assert!(matches!(kind(text), SyntaxErrorKind::Utf16(_)));
        }
        for text in ["{“a”:1}", "{'a':1}", "{\"a\": ‘b’}", "«»"] {
            assert!(matches!(kind(text.as_bytes()), SyntaxErrorKind::QuotationMark(_)), "{text}");
        }
        assert_eq!(kind(br#""\.""#), SyntaxErrorKind::Escape);
        assert_eq!(kind(b"{}{}"), SyntaxErrorKind::TrailingData);
    }

    #[test]
    fn nesting_is_limited_to_ten_thousand() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(parse(&nested(10_000)).is_ok());
        assert_eq!(kind(&nested(10_001)), SyntaxErrorKind::TooDeep);
        assert_eq!(kind(&vec![b'['; 5_000_000]), SyntaxErrorKind::TooDeep);
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_serde_json_on_valid_text(text in r#"[\[\]{}:,"0-9a-e.\\n \-trufls]{0,24}"#) {
            // serde_json also rejects lone surrogates and numbers out of range.
            let ours = parse(text.as_bytes()).is_ok();
            let serde = serde_json::from_str::<serde_json::Value>(&text);
            proptest::prop_assert!(ours == serde.is_ok() || serde.is_err_and(|e| e.to_string().contains("range") || e.to_string().contains("surrogate") || e.to_string().contains("hex escape")), "{text}");
        }
    }
}
