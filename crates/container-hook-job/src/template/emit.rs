//! Writes a tree as YAML text that is parsed to the same tree.

use oci_hooks_yaml::resolve;

use super::node::{PodEntry, PodNode, PodValue, ValueOrigin};

/// Writes a document in block style; `comment` returns the comment after a value.
pub fn emit(node: &PodNode, comment: &dyn Fn(ValueOrigin) -> Option<String>) -> String {
    let mut out = Emitter { text: String::new(), comment };
    out.node(node, 0);
    out.text
}

struct Emitter<'a> {
    text: String,
    comment: &'a dyn Fn(ValueOrigin) -> Option<String>,
}

impl Emitter<'_> {
    /// Writes a value, after its key or `-` if it has one.
    fn node(&mut self, node: &PodNode, indent: usize) {
        match &node.value {
            PodValue::Null => self.scalar("null", node),
            PodValue::Bool(flag) => self.scalar(&flag.to_string(), node),
            PodValue::Number(number) => self.scalar(&number.to_string(), node),
            PodValue::Text(text) => self.scalar(&word(text), node),
            PodValue::List(items) if items.is_empty() => self.scalar("[]", node),
            PodValue::Map(fields) if fields.is_empty() => self.scalar("{}", node),
            PodValue::List(items) => {
                for item in items {
                    self.begin("-", indent);
                    self.text.push(if item.items().is_empty() { ' ' } else { '\n' });
                    self.node(item, indent + 2);
                }
            }
            PodValue::Map(fields) => {
                for PodEntry { name, node, .. } in fields {
                    self.begin(&format!("{}:", word(name)), indent);
                    let is_scalar = node.items().is_empty() && node.fields().is_empty();
                    self.text.push(if is_scalar { ' ' } else { '\n' });
                    let is_list = matches!(node.value, PodValue::List(_));
                    self.node(node, if is_list { indent } else { indent + 2 });
                }
            }
        }
    }

    /// Writes a key or `-`, indented unless it follows a `-`.
    fn begin(&mut self, mark: &str, indent: usize) {
        if self.text.is_empty() || self.text.ends_with('\n') {
            self.text.extend(std::iter::repeat_n(' ', indent));
        }
        self.text.push_str(mark);
    }

    fn scalar(&mut self, text: &str, node: &PodNode) {
        self.text.push_str(text);
        if let Some(comment) = (self.comment)(node.origin) {
            self.text.push_str(" # ");
            self.text.push_str(&comment);
        }
        self.text.push('\n');
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

/// Returns a text as a double-quoted scalar with escapes.
fn quote_scalar(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' | '\n' | '\t' | '\r' => out.extend(c.escape_default()),
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
