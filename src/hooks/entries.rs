//! Edits of single entries in an array or object of a configuration: the text of all other entries is preserved.

use serde::Serialize;

use super::config::inject::ConfigLayout;
use super::config::read::member;
use super::{ConfigDocument, ConfigError};
use crate::json::{JsonKind, JsonValue};

/// The elements of an array, or the members of an object.
pub struct EntryList<'l> {
    entries: Vec<NamedEntry>,
    kind: JsonKind,
    layout: &'l ConfigLayout,
    depth: usize,
}

struct NamedEntry {
    name: String,
    text: Vec<u8>,
}

impl EntryList<'_> {
    /// Adds an entry at the end.
    pub fn push(&mut self, name: &str, value: &impl Serialize) {
        let entry = self.entry(name, value);
        self.entries.push(entry);
    }

    /// Replaces the last entry of this name, or adds one at the end.
    pub fn put(&mut self, name: &str, value: &impl Serialize) {
        let entry = self.entry(name, value);
        match self.entries.iter_mut().rfind(|other| other.name == name) {
            Some(other) => *other = entry,
            None => self.entries.push(entry),
        }
    }

    /// Removes the first entry of this name.
    pub fn remove(&mut self, name: &str) {
        if let Some(at) = self.entries.iter().position(|entry| entry.name == name) {
            self.entries.remove(at);
        }
    }

    /// Returns whether there is an entry of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }

    /// Sorts the entries by a key of their names; entries with equal keys keep their order.
    pub fn sort_by_key(&mut self, key: fn(&str) -> usize) {
        self.entries.sort_by_key(|entry| key(&entry.name));
    }

    fn entry(&self, name: &str, value: &impl Serialize) -> NamedEntry {
        let value = self.layout.value(value, self.depth);
        let text = match self.kind {
            JsonKind::Object => self.layout.member(name, &value),
            _ => value,
        };
        NamedEntry { name: name.to_owned(), text }
    }
}

/// Edits the array or object at a path of keys, and creates it if it is missing or null.
///
/// `name` returns the name of an element of an array; the name of a member is its key.
pub fn edit_entries(
    text: &[u8],
    path: &[&'static str],
    kind: JsonKind,
    mut name: impl FnMut(JsonValue<'_>) -> String,
    edit: impl FnOnce(&mut EntryList<'_>),
) -> Result<Vec<u8>, ConfigError> {
    let config = ConfigDocument::parse(text)?;
    let mut parent = config.document().root();
    let layout = ConfigLayout::of(parent);
    let (last, parents) = path.split_last().expect("a path has a key");
    let mut depth = 0;
    while let Some(key) = parents.get(depth)
        && let Some(object) = member(parent, key, JsonKind::Object, "an object")?
    {
        parent = object;
        depth += 1;
    }
    let found = match depth == parents.len() {
        true => member(parent, last, kind, kind_name(kind))?,
        false => None,
    };

    let mut entries = Vec::new();
    for element in found.into_iter().flat_map(JsonValue::elements) {
        entries.push(NamedEntry { name: name(element), text: element.raw().to_vec() });
    }
    for field in found.into_iter().flat_map(JsonValue::members) {
        let span = field.key.span().start..field.value.span().end;
        let name = field.key.as_str().unwrap_or_default().into_owned();
        entries.push(NamedEntry { name, text: text[span].to_vec() });
    }
    let mut list = EntryList { entries, kind, layout: &layout, depth: path.len() + 1 };
    edit(&mut list);
    let items: Vec<_> = list.entries.into_iter().map(|entry| entry.text).collect();
    let brackets = if kind == JsonKind::Object { [b"{", b"}"] } else { [b"[", b"]"] };
    let mut value = block(&layout, brackets, &items, path.len());

    let (span, new) = match found {
        Some(found) => (found.span(), value),
        None => {
            for (at, key) in path.iter().enumerate().skip(depth + 1).rev() {
                value = block(&layout, [b"{", b"}"], &[layout.member(key, &value)], at);
            }
            match (parent.get(path[depth]), parent.members().last()) {
                (Some(null), _) => (null.span(), value),
                (None, Some(last)) => {
                    let end = last.value.span().end;
                    let line = layout.line(depth + 1);
                    let new = layout.member(path[depth], &value);
                    (end..end, [b",".as_slice(), &line, &new].concat())
                }
                (None, None) => {
                    let new = layout.member(path[depth], &value);
                    (parent.span(), block(&layout, [b"{", b"}"], &[new], depth))
                }
            }
        }
    };
    Ok([&text[..span.start], &new, &text[span.end..]].concat())
}

fn kind_name(kind: JsonKind) -> &'static str {
    if kind == JsonKind::Object { "an object" } else { "an array" }
}

/// Formats an array or object; the indentation of its closing bracket is `depth`.
fn block(
    layout: &ConfigLayout,
    brackets: [&[u8; 1]; 2],
    items: &[Vec<u8>],
    depth: usize,
) -> Vec<u8> {
    if items.is_empty() {
        return brackets.map(|bracket| bracket[0]).to_vec();
    }
    let line = layout.line(depth + 1);
    let items = items.join([b",".as_slice(), &line].concat().as_slice());
    [brackets[0].as_slice(), &line, &items, &layout.line(depth), brackets[1]].concat()
}
