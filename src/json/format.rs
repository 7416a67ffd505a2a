//! Laying a text out over lines without touching its values.

use super::{Document, Kind};

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

impl Document<'_> {
    /// Returns the text with each item on its own line; numbers and strings stay as they are.
    pub fn pretty(&self, indent: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text().len() * 2);
        let mut open: Vec<Open> = Vec::new();
        for (at, value) in self.values().enumerate() {
            while open.last().is_some_and(|container| container.end == at) {
                close(&mut out, &mut open, indent);
            }
            let depth = open.len();
            if let Some(container) = open.last_mut() {
                if container.after_key {
                    out.extend_from_slice(b": ");
                } else {
                    if !container.is_empty {
                        out.push(b',');
                    }
                    new_line(&mut out, depth, indent);
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
                _ => out.extend_from_slice(value.raw()),
            }
        }
        while !open.is_empty() {
            close(&mut out, &mut open, indent);
        }
        out.push(b'\n');
        out
    }
}

fn close(out: &mut Vec<u8>, open: &mut Vec<Open>, indent: &str) {
    let Some(container) = open.pop() else { return };
    if !container.is_empty {
        new_line(out, open.len(), indent);
    }
    out.push(if container.kind == Kind::Object { b'}' } else { b']' });
}

fn new_line(out: &mut Vec<u8>, depth: usize, indent: &str) {
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
    fn deep_nesting_does_not_make_a_long_text() {
        let text = [vec![b'['; 10_000], vec![b']'; 10_000]].concat();
        let pretty = Document::parse(&text).unwrap().pretty("  ");
        assert!(pretty.len() < 100 * text.len(), "{} bytes", pretty.len());
        assert_eq!(pretty.iter().filter(|&&b| b == b'[').count(), 10_000);
        assert_eq!(pretty.iter().filter(|&&b| b == b']').count(), 10_000);
    }
}
