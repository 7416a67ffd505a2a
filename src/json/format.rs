//! Laying a text out over lines, or on one, without touching its values.

use super::{Document, Kind, Value, string};

/// Deeper levels are not indented further: a short text with deep nesting would become a huge one.
const MAX_INDENTED_DEPTH: usize = 32;

/// An array or object that is being written.
struct Open {
    /// The number of the first value after it.
    end: usize,
    kind: Kind,
    is_empty: bool,
    /// A key was written, and its value comes next.
    after_key: bool,
}

/// How a text is laid out.
#[derive(Clone, Copy)]
enum Layout<'a> {
    /// Each item on its own line; strings stay as they are.
    Lines { indent: &'a str },
    /// No white space, and strings as Go's encoder writes them.
    Compact,
}

impl Document<'_> {
    /// Returns the text with each item on its own line; numbers and strings stay as they are.
    pub fn pretty(&self, indent: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text().len() * 2);
        self.root().write(Layout::Lines { indent }, &mut out);
        out.push(b'\n');
        out
    }

    /// Returns the text as Go's encoder writes it: without white space, characters escaped as there.
    /// Keys keep their order, and numbers stay as they are.
    pub fn compact(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text().len());
        self.root().write_compact(&mut out);
        out
    }
}

impl Value<'_> {
    /// Writes the value as [`Document::compact`] does.
    pub(crate) fn write_compact(self, out: &mut Vec<u8>) {
        self.write(Layout::Compact, out);
    }

    fn write(self, layout: Layout<'_>, out: &mut Vec<u8>) {
        let mut open: Vec<Open> = Vec::new();
        for value in self.inside() {
            let at = value.index();
            while open.last().is_some_and(|container| container.end == at) {
                close(out, &mut open, layout);
            }
            let depth = open.len();
            if let Some(container) = open.last_mut() {
                if container.after_key {
                    out.extend_from_slice(match layout {
                        Layout::Lines { .. } => b": ",
                        Layout::Compact => b":",
                    });
                } else {
                    if !container.is_empty {
                        out.push(b',');
                    }
                    new_line(out, depth, layout);
                }
                container.is_empty = false;
                container.after_key = container.kind == Kind::Object && !container.after_key;
            }
            match value.kind() {
                kind @ (Kind::Object | Kind::Array) => {
                    out.push(if kind == Kind::Object { b'{' } else { b'[' });
                    let end = value.end_index();
                    open.push(Open { end, kind, is_empty: true, after_key: false });
                }
                _ => match (layout, value.as_str()) {
                    (Layout::Compact, Some(text)) => string::write(&text, out),
                    _ => out.extend_from_slice(value.raw()),
                },
            }
        }
        while !open.is_empty() {
            close(out, &mut open, layout);
        }
    }
}

fn close(out: &mut Vec<u8>, open: &mut Vec<Open>, layout: Layout<'_>) {
    let Some(container) = open.pop() else { return };
    if !container.is_empty {
        new_line(out, open.len(), layout);
    }
    out.push(if container.kind == Kind::Object { b'}' } else { b']' });
}

fn new_line(out: &mut Vec<u8>, depth: usize, layout: Layout<'_>) {
    let Layout::Lines { indent } = layout else { return };
    out.push(b'\n');
    (0..depth.min(MAX_INDENTED_DEPTH)).for_each(|_| out.extend_from_slice(indent.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_keeps_values_as_they_are_written() {
        let text = br#"{"a":[1.50,1e400,[]],"b":{},"c":{"d":"\u0041"}}"#;
        let pretty = Document::parse(text).unwrap().pretty("  ");
        assert_eq!(
            String::from_utf8(pretty).unwrap(),
            "{\n  \"a\": [\n    1.50,\n    1e400,\n    []\n  ],\n  \"b\": {},\n  \"c\": {\n    \"d\": \"\\u0041\"\n  }\n}\n"
        );
    }

    #[test]
    fn compact_is_what_go_writes() {
        let text =
            b"{ \"a\" : [ 1.50 , \"\\u003cx\\/\xff\" , { } ],\n \"\\u0062\": {\"c\": null} }\n";
        let compact = Document::parse(text).unwrap().compact();
        let expected = "{\"a\":[1.50,\"\\u003cx/\u{fffd}\",{}],\"b\":{\"c\":null}}";
        assert_eq!(String::from_utf8(compact).unwrap(), expected);
    }

    #[test]
    fn deep_nesting_does_not_make_a_long_text() {
        let text = [vec![b'['; 10_000], vec![b']'; 10_000]].concat();
        let pretty = Document::parse(&text).unwrap().pretty("  ");
        assert!(pretty.len() < 100 * text.len(), "{} bytes", pretty.len());
        assert_eq!(pretty.iter().filter(|&&b| b == b'[').count(), 10_000);
        assert_eq!(pretty.iter().filter(|&&b| b == b']').count(), 10_000);
    }
}
