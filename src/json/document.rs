//! A parsed JSON text and its values.

use std::borrow::Cow;
use std::ops::Range;

use super::{SyntaxError, parse, string};

/// A JSON text and the position of each of its values.
///
/// Values live in one flat list in document order, so that neither parsing nor dropping a deeply
/// nested text recurses.
#[derive(Clone, Debug)]
pub struct JsonDocument<'t> {
    text: &'t [u8],
    nodes: Vec<JsonNode>,
}

/// One value: its kind, its byte range, and the index of the first node after it and its
/// descendants.
///
/// The children of an object are its keys and values in turn.
#[derive(Clone, Copy, Debug)]
pub struct JsonNode {
    pub kind: JsonKind,
    pub start: u32,
    pub end: u32,
    pub next: u32,
}

/// The type of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonKind {
    Null,
    Bool,
    Number,
    String,
    Array,
    Object,
}

impl JsonKind {
    /// Returns the JSON name of the type.
    pub fn name(self) -> &'static str {
        match self {
            JsonKind::Null => "null",
            JsonKind::Bool => "boolean",
            JsonKind::Number => "number",
            JsonKind::String => "string",
            JsonKind::Array => "array",
            JsonKind::Object => "object",
        }
    }
}

/// A position in a text: line, column and JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextLocation {
    /// Byte range in the text.
    pub span: Range<usize>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// JSON pointer ([RFC 6901]) of the value; empty for the whole document.
    ///
    /// [RFC 6901]: https://www.rfc-editor.org/rfc/rfc6901
    pub pointer: String,
}

impl TextLocation {
    /// Finds the line and column of a span; the pointer stays empty.
    pub fn of_span(text: &[u8], span: Range<usize>) -> Self {
        let before = &text[..span.start.min(text.len())];
        let line_start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        TextLocation {
            line: before.iter().filter(|&&b| b == b'\n').count() + 1,
            column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
            pointer: String::new(),
            span,
        }
    }
}

impl<'t> JsonDocument<'t> {
    /// Parses a whole text, which may be at most 4 GiB.
    pub fn parse(text: &'t [u8]) -> Result<Self, SyntaxError> {
        Ok(JsonDocument { text, nodes: parse::parse(text)? })
    }

    /// Returns the text that was parsed.
    pub fn text(&self) -> &'t [u8] {
        self.text
    }

    /// Returns the root value of the document.
    pub fn root(&self) -> JsonValue<'_> {
        JsonValue { text: self.text, nodes: &self.nodes, index: 0 }
    }

    /// Returns all values in document order, object keys included.
    pub fn values(&self) -> impl Iterator<Item = JsonValue<'_>> {
        (0..self.nodes.len()).map(|index| JsonValue { text: self.text, nodes: &self.nodes, index })
    }
}

/// One value of a [`JsonDocument`].
#[derive(Clone, Copy, Debug)]
pub struct JsonValue<'d> {
    text: &'d [u8],
    nodes: &'d [JsonNode],
    index: usize,
}

/// A key of an object and its value.
#[derive(Clone, Copy, Debug)]
pub struct JsonMember<'d> {
    pub key: JsonValue<'d>,
    pub value: JsonValue<'d>,
}

impl JsonMember<'_> {
    /// Returns whether the key is exactly `name`.
    pub fn is_named(&self, name: &str) -> bool {
        self.key.as_str().is_some_and(|key| key == name)
    }
}

impl<'d> JsonValue<'d> {
    fn node(self) -> &'d JsonNode {
        &self.nodes[self.index]
    }

    /// Returns the type of the value.
    pub fn kind(self) -> JsonKind {
        self.node().kind
    }

    /// Returns whether this is `null`.
    pub fn is_null(self) -> bool {
        self.kind() == JsonKind::Null
    }

    /// Returns the byte range of the value in the text.
    pub fn span(self) -> Range<usize> {
        self.node().start as usize..self.node().end as usize
    }

    /// Returns the source text of the value.
    pub fn raw(self) -> &'d [u8] {
        &self.text[self.span()]
    }

    /// Returns the decoded string; `None` for other kinds.
    pub fn as_str(self) -> Option<Cow<'d, str>> {
        let span = self.span();
        (self.kind() == JsonKind::String)
            .then(|| string::decode(&self.text[span.start + 1..span.end - 1]))
    }

    /// Returns the boolean; `None` for other kinds.
    pub fn as_bool(self) -> Option<bool> {
        (self.kind() == JsonKind::Bool).then(|| self.raw() == b"true")
    }

    /// Returns the number if it is written as an integer (no fraction, no exponent) within `i64`.
    pub fn as_i64(self) -> Option<i64> {
        if self.kind() != JsonKind::Number {
            return None;
        }
        std::str::from_utf8(self.raw()).ok()?.parse().ok()
    }

    /// Returns the elements of an array; nothing for other kinds.
    pub fn elements(self) -> impl Iterator<Item = JsonValue<'d>> {
        self.children().filter(move |_| self.kind() == JsonKind::Array)
    }

    /// Returns the members of an object in document order; nothing for other kinds.
    pub fn members(self) -> impl Iterator<Item = JsonMember<'d>> {
        let mut children = self.children().filter(move |_| self.kind() == JsonKind::Object);
        std::iter::from_fn(move || {
            Some(JsonMember { key: children.next()?, value: children.next()? })
        })
    }

    /// Returns the value of the last member with exactly this key.
    pub fn get(self, name: &str) -> Option<JsonValue<'d>> {
        self.members().filter(|member| member.is_named(name)).last().map(|member| member.value)
    }

    /// Returns the direct children, keys and values alike.
    fn children(self) -> impl Iterator<Item = JsonValue<'d>> {
        let mut index = self.index + 1;
        std::iter::from_fn(move || {
            (index < self.node().next as usize).then(|| {
                let child = JsonValue { index, ..self };
                index = child.node().next as usize;
                child
            })
        })
    }

    /// Returns the position of the value, with its JSON pointer.
    pub fn location(self) -> TextLocation {
        TextLocation { pointer: self.pointer(), ..TextLocation::of_span(self.text, self.span()) }
    }

    /// Returns the JSON pointer of the value; of an object key, that of its member.
    pub fn pointer(self) -> String {
        let mut pointer = String::new();
        let mut parent = JsonValue { index: 0, ..self };
        while parent.index != self.index {
            let (token, child) = match parent.kind() {
                JsonKind::Object => {
                    let Some(member) = parent.members().find(|m| self.index < m.value.end_index())
                    else {
                        break;
                    };
                    if member.key.index == self.index {
                        push_token(&mut pointer, &member.key.as_str().unwrap_or_default());
                        break;
                    }
                    (member.key.as_str().unwrap_or_default(), member.value)
                }
                _ => {
                    let found = parent.elements().enumerate();
                    let Some((at, element)) =
                        found.into_iter().find(|(_, e)| self.index < e.end_index())
                    else {
                        break;
                    };
                    (Cow::Owned(at.to_string()), element)
                }
            };
            push_token(&mut pointer, &token);
            parent = child;
        }
        pointer
    }

    /// Returns this value and all values nested in it, in document order, object keys included.
    pub fn inside(self) -> impl Iterator<Item = JsonValue<'d>> {
        (self.index..self.end_index()).map(move |index| JsonValue { index, ..self })
    }

    /// Returns the index of the value in document order.
    pub(super) fn index(self) -> usize {
        self.index
    }

    /// Returns the index of the first value after this one and its descendants.
    pub(super) fn end_index(self) -> usize {
        self.node().next as usize
    }
}

fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> JsonDocument<'_> {
        JsonDocument::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn members_and_elements_keep_document_order() {
        let document = document(r#"{"b":[1,{"x":2},3],"a":null}"#);
        let keys: Vec<_> = document.root().members().map(|m| m.key.as_str().unwrap()).collect();
        assert_eq!(keys, ["b", "a"]);
        let list = document.root().get("b").unwrap();
        assert_eq!(
            list.elements().map(|e| e.raw()).collect::<Vec<_>>(),
            [b"1".as_slice(), br#"{"x":2}"#, b"3"]
        );
        assert_eq!(list.members().count(), 0);
    }

    #[test]
    fn location_gives_line_column_and_pointer() {
        let document = document("{\n  \"é\": {\"a/b\": [true, \"x\"]}\n}");
        let last = document.values().last().unwrap();
        let location = last.location();
        assert_eq!((location.line, location.column), (2, 23));
        assert_eq!(location.pointer, "/é/a~1b/1");
    }

    #[test]
    fn pointer_of_a_key_equals_that_of_its_member() {
        let document = document(r#"{"when":{"annotations":{"(":"x"}}}"#);
        let key = document.values().find(|v| v.as_str().as_deref() == Some("(")).unwrap();
        assert_eq!(key.pointer(), "/when/annotations/(");
    }

    #[test]
    fn integers_are_literals_within_i64() {
        for (text, value) in [
            ("5", Some(5)),
            ("-0", Some(0)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("1.0", None),
            ("1e2", None),
            ("\"5\"", None),
        ] {
            assert_eq!(document(text).root().as_i64(), value, "{text}");
        }
    }
}
