//! Writes a tree as YAML text that is parsed to the same tree.

use oci_hooks_yaml::resolve;

use super::node::{PodEntry, PodNode, PodValue, ValueOrigin};

/// Writes a document in block style; `comment` returns the comment after a value.
pub fn emit(node: &PodNode, comment: &dyn Fn(ValueOrigin) -> Option<String>) -> String {
    let mut out = Emitter { text: String::new(), comment };
    match &node.value {
        PodValue::Map(fields) if !fields.is_empty() => out.map(fields, 0, false),
        PodValue::List(items) if !items.is_empty() => out.list(items, 0),
        _ => out.scalar(node),
    }
    out.text
}

struct Emitter<'a> {
    text: String,
    comment: &'a dyn Fn(ValueOrigin) -> Option<String>,
}

impl Emitter<'_> {
    /// Writes fields; the first continues the current line if `continues` is set.
    fn map(&mut self, fields: &[PodEntry], indent: usize, continues: bool) {
        for (index, field) in fields.iter().enumerate() {
            if index > 0 || !continues {
                self.indent(indent);
            }
            self.text.push_str(&word(&field.name));
            self.text.push(':');
            match &field.node.value {
                PodValue::Map(inner) if !inner.is_empty() => {
                    self.text.push('\n');
                    self.map(inner, indent + 2, false);
                }
                PodValue::List(items) if !items.is_empty() => {
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

    fn list(&mut self, items: &[PodNode], indent: usize) {
        for item in items {
            self.indent(indent);
            match &item.value {
                PodValue::Map(fields) if !fields.is_empty() => {
                    self.text.push_str("- ");
                    self.map(fields, indent + 2, true);
                }
                PodValue::List(inner) if !inner.is_empty() => {
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

    fn scalar(&mut self, node: &PodNode) {
        match &node.value {
            PodValue::Null => self.text.push_str("null"),
            PodValue::Bool(flag) => self.text.push_str(if *flag { "true" } else { "false" }),
            PodValue::Number(number) => self.text.push_str(&number.to_string()),
            PodValue::Text(text) => self.text.push_str(&word(text)),
            PodValue::List(_) => self.text.push_str("[]"),
            PodValue::Map(_) => self.text.push_str("{}"),
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

/// Returns a text as a YAML scalar: plain if possible, else in double quotes.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=,$@ ".contains(c);
    let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || "/._$".contains(c));
    // A colon begins a value, and `-` an element, only before a blank.
    let is_bare = begins_well
        && !text.ends_with([' ', ':'])
        && text.chars().all(|c| is_plain(c) || c == ':')
        && !text.contains(": ")
        // `...` ends a document.
        && !text.starts_with("..")
        && is_text(text);
    if is_bare { text.to_owned() } else { quote_scalar(text) }
}

/// Returns whether all parsers, including those of YAML 1.1, read a plain text as a string.
fn is_text(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let old = matches!(lower.as_str(), "y" | "yes" | "n" | "no" | "on" | "off");
    // Numbers in base 60, dates, and other texts that begin like a number.
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && !text.contains(|c: char| c.is_ascii_alphabetic());
    !old && !is_number && resolve::<ValueOrigin>(text) == PodValue::Text(text.to_owned())
}

/// Writes a text as a double-quoted scalar with escapes.
fn quote_scalar(text: &str) -> String {
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
            // Line breaks of YAML 1.1, the byte order mark, and noncharacters.
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
