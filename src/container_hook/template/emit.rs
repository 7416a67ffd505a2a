//! A tree to YAML text that reads back as the same tree.

use super::node::{Field, Node, Origin, Value};
use crate::yaml::resolve;

/// Writes a document in block style; `comment` says what stands behind a value.
pub fn emit(node: &Node, comment: &dyn Fn(Origin) -> Option<String>) -> String {
    let mut out = Emitter { text: String::new(), comment };
    match &node.value {
        Value::Map(fields) if !fields.is_empty() => out.map(fields, 0, false),
        Value::List(items) if !items.is_empty() => out.list(items, 0),
        _ => out.scalar(node),
    }
    out.text
}

struct Emitter<'a> {
    text: String,
    comment: &'a dyn Fn(Origin) -> Option<String>,
}

impl Emitter<'_> {
    /// Writes fields, the first of which may continue a line.
    fn map(&mut self, fields: &[Field], indent: usize, continues: bool) {
        for (index, field) in fields.iter().enumerate() {
            if index > 0 || !continues {
                self.indent(indent);
            }
            self.text.push_str(&word(&field.name));
            self.text.push(':');
            match &field.node.value {
                Value::Map(inner) if !inner.is_empty() => {
                    self.text.push('\n');
                    self.map(inner, indent + 2, false);
                }
                Value::List(items) if !items.is_empty() => {
                    self.text.push('\n');
                    self.list(items, indent);
                }
                _ => {
                    self.text.push(' ');
                    self.scalar(&field.node);
                }
            }
        }
    }

    fn list(&mut self, items: &[Node], indent: usize) {
        for item in items {
            self.indent(indent);
            match &item.value {
                Value::Map(fields) if !fields.is_empty() => {
                    self.text.push_str("- ");
                    self.map(fields, indent + 2, true);
                }
                Value::List(inner) if !inner.is_empty() => {
                    self.text.push_str("-\n");
                    self.list(inner, indent + 2);
                }
                _ => {
                    self.text.push_str("- ");
                    self.scalar(item);
                }
            }
        }
    }

    fn scalar(&mut self, node: &Node) {
        match &node.value {
            Value::Null => self.text.push_str("null"),
            Value::Bool(flag) => self.text.push_str(if *flag { "true" } else { "false" }),
            Value::Number(number) => self.text.push_str(&number.to_string()),
            Value::Text(text) => self.text.push_str(&word(text)),
            Value::List(_) => self.text.push_str("[]"),
            Value::Map(_) => self.text.push_str("{}"),
        }
        if let Some(comment) = (self.comment)(node.origin) {
            self.text.push_str(" # ");
            self.text.push_str(&comment);
        }
        self.text.push('\n');
    }

    fn indent(&mut self, indent: usize) {
        self.text.extend(std::iter::repeat_n(' ', indent));
    }
}

/// Returns a text as a YAML scalar: bare if it is one then, else in double quotes.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=,$@ ".contains(c);
    let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || "/._$".contains(c));
    // A colon begins a value only before a blank, as `-` an element.
    let is_bare = begins_well
        && !text.ends_with([' ', ':'])
        && text.chars().all(|c| is_plain(c) || c == ':')
        && !text.contains(": ")
        // Three dots or dashes are the end of a document.
        && !text.starts_with("..")
        && is_text(text);
    if is_bare { text.to_owned() } else { quoted(text) }
}

/// Returns whether nobody takes a bare text for something else, an old parser included.
fn is_text(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let old = matches!(lower.as_str(), "y" | "yes" | "n" | "no" | "on" | "off");
    // Numbers in base 60, dates and whatever else begins as a number does.
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && !text.contains(|c: char| c.is_ascii_alphabetic());
    !old && !is_number && resolve::<Origin>(text) == Value::Text(text.to_owned())
}

/// Escapes what a double-quoted scalar cannot hold as it is.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            // Line breaks of YAML 1.1, the byte order mark, and what is no character.
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
