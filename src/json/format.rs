//! Pretty-printing and compacting a JSON text without changing its values.

use super::{JsonDocument, JsonKind, JsonValue, string};

/// Maximum depth of indentation: without a limit, a short but deeply nested text would become huge.
const MAX_INDENTED_DEPTH: usize = 32;

/// An array or object that is being written.
struct UnclosedValue {
    /// Index of the first value after the array or object.
    end: usize,
    kind: JsonKind,
    is_empty: bool,
    /// If set, a key was written and its value comes next.
    after_key: bool,
}

#[derive(Clone, Copy)]
enum JsonLayout<'a> {
    /// Each item on its own line; strings unchanged.
    Lines { indent: &'a str },
    /// No white space; strings escaped as by Go's encoder.
    Compact,
}

impl JsonDocument<'_> {
    /// Returns the text with each item on its own line; numbers and strings are unchanged.
    pub fn to_pretty(&self, indent: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text().len() * 2);
        self.root().write(JsonLayout::Lines { indent }, &mut out);
        out.push(b'\n');
        out
    }

    /// Returns the text as Go's encoder writes it: without white space, with Go's escapes. Keys
    /// keep their order, and numbers are unchanged.
    pub fn to_compact(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text().len());
        self.root().write_compact(&mut out);
        out
    }
}

impl JsonValue<'_> {
    /// Writes the value as [`JsonDocument::to_compact`] does.
    pub(crate) fn write_compact(self, out: &mut Vec<u8>) {
        self.write(JsonLayout::Compact, out);
    }

    fn write(self, layout: JsonLayout<'_>, out: &mut Vec<u8>) {
        let mut open: Vec<UnclosedValue> = Vec::new();
        for value in self.inside() {
            let at = value.index();
            while open.last().is_some_and(|container| container.end == at) {
                close(out, &mut open, layout);
            }
            let depth = open.len();
            if let Some(container) = open.last_mut() {
                if container.after_key {
                    out.extend_from_slice(match layout {
                        JsonLayout::Lines { .. } => b": ",
                        JsonLayout::Compact => b":",
                    });
                } else {
                    if !container.is_empty {
                        out.push(b',');
                    }
                    new_line(out, depth, layout);
                }
                container.is_empty = false;
                container.after_key = container.kind == JsonKind::Object && !container.after_key;
            }
            match value.kind() {
                kind @ (JsonKind::Object | JsonKind::Array) => {
                    out.push(if kind == JsonKind::Object { b'{' } else { b'[' });
                    let end = value.end_index();
                    open.push(UnclosedValue { end, kind, is_empty: true, after_key: false });
                }
                _ => match (layout, value.as_str()) {
                    (JsonLayout::Compact, Some(text)) => string::write(&text, out),
                    _ => out.extend_from_slice(value.raw()),
                },
            }
        }
        while !open.is_empty() {
            close(out, &mut open, layout);
        }
    }
}

fn close(out: &mut Vec<u8>, open: &mut Vec<UnclosedValue>, layout: JsonLayout<'_>) {
    let Some(container) = open.pop() else { return };
    if !container.is_empty {
        new_line(out, open.len(), layout);
    }
    out.push(if container.kind == JsonKind::Object { b'}' } else { b']' });
}

fn new_line(out: &mut Vec<u8>, depth: usize, layout: JsonLayout<'_>) {
    let JsonLayout::Lines { indent } = layout else { return };
    out.push(b'\n');
    (0..depth.min(MAX_INDENTED_DEPTH)).for_each(|_| out.extend_from_slice(indent.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_keeps_values_unchanged() {
        let text = br#"{"a":[1.50,1e400,[]],"b":{},"c":{"d":"\u0041"}}"#;
        let pretty = JsonDocument::parse(text).unwrap().to_pretty("  ");
        assert_eq!(
            String::from_utf8(pretty).unwrap(),
            "{\n  \"a\": [\n    1.50,\n    1e400,\n    []\n  ],\n  \"b\": {},\n  \"c\": {\n    \"d\": \"\\u0041\"\n  }\n}\n"
        );
    }

    #[test]
    fn compact_matches_the_encoder_of_go() {
        let text =
            b"{ \"a\" : [ 1.50 , \"\\u003cx\\/\xff\" , { } ],\n \"\\u0062\": {\"c\": null} }\n";
        let compact = JsonDocument::parse(text).unwrap().to_compact();
        let expected = "{\"a\":[1.50,\"\\u003cx/\u{fffd}\",{}],\"b\":{\"c\":null}}";
        assert_eq!(String::from_utf8(compact).unwrap(), expected);
    }

    #[test]
    fn deep_nesting_does_not_enlarge_the_text() {
        let text = [vec![b'['; 10_000], vec![b']'; 10_000]].concat();
        let pretty = JsonDocument::parse(&text).unwrap().to_pretty("  ");
        assert!(pretty.len() < 100 * text.len(), "{} bytes", pretty.len());
        assert_eq!(pretty.iter().filter(|&&b| b == b'[').count(), 10_000);
        assert_eq!(pretty.iter().filter(|&&b| b == b']').count(), 10_000);
    }
}
