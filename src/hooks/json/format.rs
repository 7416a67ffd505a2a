//! Laying a text out over lines without touching its values.

use super::{Document, Kind, Value};

impl Document<'_> {
    /// Returns the text with each item on its own line; numbers and strings stay as they are.
    pub fn pretty(&self, indent: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.text().len() * 2);
        // What is still to be written: a value, or the bytes that stand between two.
        enum Next<'d> {
            Value(Value<'d>),
            Break(usize),
            Bytes(&'static [u8]),
        }
        let mut stack = vec![(Next::Value(self.root()), 0)];
        while let Some((next, depth)) = stack.pop() {
            let value = match next {
                Next::Value(value) => value,
                Next::Bytes(bytes) => {
                    out.extend_from_slice(bytes);
                    continue;
                }
                Next::Break(depth) => {
                    out.push(b'\n');
                    (0..depth).for_each(|_| out.extend_from_slice(indent.as_bytes()));
                    continue;
                }
            };
            let (open, close): (&[u8], &'static [u8]) = match value.kind() {
                Kind::Object => (b"{", b"}"),
                Kind::Array => (b"[", b"]"),
                _ => {
                    out.extend_from_slice(value.raw());
                    continue;
                }
            };
            out.extend_from_slice(open);
            let mut inside = Vec::new();
            for element in value.elements() {
                inside.extend([Next::Break(depth + 1), Next::Value(element), Next::Bytes(b",")]);
            }
            for member in value.members() {
                inside.extend([
                    Next::Break(depth + 1),
                    Next::Value(member.key),
                    Next::Bytes(b": "),
                    Next::Value(member.value),
                    Next::Bytes(b","),
                ]);
            }
            if inside.pop().is_some() {
                inside.push(Next::Break(depth));
            }
            inside.push(Next::Bytes(close));
            stack.extend(inside.into_iter().rev().map(|next| (next, depth + 1)));
        }
        out.push(b'\n');
        out
    }
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
}
