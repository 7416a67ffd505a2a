//! Nodes of YAML texts, and errors, with line and column.

use std::fmt;

use oci_hooks_files::spelling::closest_name;
use serde_json::Number;

/// Position of a node in the text, and its spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSource {
    pub position: TextPosition,
    /// The unquoted word that was resolved as null, boolean or number, for example `1.10`; also set for a
    /// number that JSON does not have, such as `.inf`, whose value is text.
    pub word: Option<Box<str>>,
}

/// A value with its origin `O`.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlNode<O = NodeSource> {
    pub origin: O,
    pub value: YamlValue<O>,
}

/// A value of the YAML core schema.
#[derive(Clone, Debug, PartialEq)]
pub enum YamlValue<O = NodeSource> {
    Null,
    Bool(bool),
    /// A number, exact up to 64 bits.
    Number(Number),
    Text(String),
    List(Vec<YamlNode<O>>),
    /// Keys and values, without duplicate keys.
    Map(Vec<YamlField<O>>),
}

/// A key and its value. The order of fields is that of the document.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlField<O = NodeSource> {
    pub name: String,
    pub origin: O,
    pub node: YamlNode<O>,
}

impl<O> YamlValue<O> {
    /// Returns the type of the value, for messages. Never the value itself: it may be a secret.
    pub fn kind(&self) -> &'static str {
        match self {
            YamlValue::Null => "null",
            YamlValue::Bool(_) => "true or false",
            YamlValue::Number(_) => "a number",
            YamlValue::Text(_) => "a string",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a mapping",
        }
    }
}

impl<O> YamlNode<O> {
    /// Converts the origin of every node of the tree.
    pub fn with_origins<P>(self, origin: fn(O) -> P) -> YamlNode<P> {
        let value = match self.value {
            YamlValue::Null => YamlValue::Null,
            YamlValue::Bool(flag) => YamlValue::Bool(flag),
            YamlValue::Number(number) => YamlValue::Number(number),
            YamlValue::Text(text) => YamlValue::Text(text),
            YamlValue::List(items) => {
                YamlValue::List(items.into_iter().map(|item| item.with_origins(origin)).collect())
            }
            YamlValue::Map(fields) => YamlValue::Map(
                fields
                    .into_iter()
                    .map(|field| YamlField {
                        name: field.name,
                        origin: origin(field.origin),
                        node: field.node.with_origins(origin),
                    })
                    .collect(),
            ),
        };
        YamlNode { origin: origin(self.origin), value }
    }

    /// Returns whether the value is null, which counts as absent.
    pub fn is_null(&self) -> bool {
        matches!(self.value, YamlValue::Null)
    }

    /// Returns the value of a field that exists and is not null.
    pub fn get(&self, name: &str) -> Option<&YamlNode<O>> {
        let field = self.fields().iter().find(|field| field.name == name)?;
        Some(&field.node).filter(|node| !node.is_null())
    }

    /// Returns the fields of a mapping; for other values, an empty slice.
    pub fn fields(&self) -> &[YamlField<O>] {
        match &self.value {
            YamlValue::Map(fields) => fields,
            _ => &[],
        }
    }

    /// Returns the elements of a list; for other values, an empty slice.
    pub fn items(&self) -> &[YamlNode<O>] {
        match &self.value {
            YamlValue::List(items) => items,
            _ => &[],
        }
    }
}

impl<O: Copy> YamlNode<O> {
    /// Converts a JSON document; `origin` returns the origin of each value, given its JSON pointer.
    pub fn from_json(
        json: serde_json::Value,
        pointer: &mut String,
        origin: &dyn Fn(&str) -> O,
    ) -> Self {
        let this = origin(pointer);
        let mut below = |name: &str, json| {
            let length = pointer.len();
            pointer.push('/');
            pointer.push_str(&escape(name));
            let node = YamlNode::from_json(json, pointer, origin);
            pointer.truncate(length);
            node
        };
        let value = match json {
            serde_json::Value::Null => YamlValue::Null,
            serde_json::Value::Bool(flag) => YamlValue::Bool(flag),
            serde_json::Value::Number(number) => YamlValue::Number(number),
            serde_json::Value::String(text) => YamlValue::Text(text),
            serde_json::Value::Array(items) => {
                let items = items.into_iter().enumerate();
                YamlValue::List(
                    items.map(|(index, item)| below(&index.to_string(), item)).collect(),
                )
            }
            serde_json::Value::Object(members) => {
                let fields = members.into_iter().map(|(name, json)| {
                    let node = below(&name, json);
                    YamlField { name, origin: node.origin, node }
                });
                YamlValue::Map(fields.collect())
            }
        };
        YamlNode { origin: this, value }
    }

    /// Returns the elements of a field's list.
    pub fn list(&self, name: &str) -> &[Self] {
        self.get(name).map_or(&[], Self::items)
    }

    /// Returns the text of a field; `None` if its value is no text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match &self.get(name)?.value {
            YamlValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Replaces or adds a field; a field whose value is null is removed instead.
    pub fn set(&mut self, field: &YamlField<O>) {
        let fields = self.fields_mut();
        let found = fields.iter().position(|other| other.name == field.name);
        match found {
            Some(index) if field.node.is_null() => drop(fields.remove(index)),
            Some(index) => fields[index] = field.clone(),
            None if field.node.is_null() => {}
            None => fields.push(field.clone()),
        }
    }

    /// Returns the mutable value of a field; an absent or null field is set to `empty`.
    pub fn entry(&mut self, name: &str, origin: O, empty: YamlValue<O>) -> &mut Self {
        let fields = self.fields_mut();
        let index = fields.iter().position(|field| field.name == name).unwrap_or_else(|| {
            let node = YamlNode { origin, value: YamlValue::Null };
            fields.push(YamlField { name: name.to_owned(), origin, node });
            fields.len() - 1
        });
        let node = &mut fields[index].node;
        if node.is_null() {
            *node = YamlNode { origin, value: empty };
        }
        node
    }

    /// Returns the mutable fields of a mapping; any other value becomes an empty mapping.
    pub fn fields_mut(&mut self) -> &mut Vec<YamlField<O>> {
        if !matches!(self.value, YamlValue::Map(_)) {
            self.value = YamlValue::Map(Vec::new());
        }
        match &mut self.value {
            YamlValue::Map(fields) => fields,
            _ => unreachable!("it was made one"),
        }
    }

    /// Returns the mutable elements of a list; any other value becomes an empty list.
    pub fn items_mut(&mut self) -> &mut Vec<Self> {
        if !matches!(self.value, YamlValue::List(_)) {
            self.value = YamlValue::List(Vec::new());
        }
        match &mut self.value {
            YamlValue::List(items) => items,
            _ => unreachable!("it was made one"),
        }
    }

    /// Returns the value that a JSON pointer (RFC 6901) leads to.
    pub fn pointer(&self, pointer: &str) -> Option<&Self> {
        let Some(rest) = pointer.strip_prefix('/') else { return Some(self) };
        rest.split('/').try_fold(self, |node, token| match &node.value {
            YamlValue::List(items) => items.get(token.parse::<usize>().ok()?),
            YamlValue::Map(fields) => {
                let name = token.replace("~1", "/").replace("~0", "~");
                fields.iter().find(|field| field.name == name).map(|field| &field.node)
            }
            _ => None,
        })
    }
}

/// Escapes a field's name for a JSON pointer.
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A line and a column in a text, both from 1; columns are counted in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPosition {
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A position in a named file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// File name as given by the caller.
    pub file: String,
    /// Line and column; `None` for the file as a whole.
    pub position: Option<TextPosition>,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(f, "{}:{position}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// A text that is not YAML, or uses YAML that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct YamlError {
    /// Line and column; `None` for the text as a whole.
    pub position: Option<TextPosition>,
    pub problem: YamlProblem,
}

impl YamlError {
    pub(super) fn new(position: impl Into<Option<TextPosition>>, problem: YamlProblem) -> Self {
        YamlError { position: position.into(), problem }
    }
}

/// Kinds of errors in any YAML text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlProblem {
    #[error("invalid YAML: {0}")]
    Syntax(String),
    /// Values are nested deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    #[error("nested too deeply (limit {0})")]
    TooDeep(usize),
    #[error("too much data after expanding aliases (limit 16 MiB)")]
    TooLarge,
    /// An alias refers to a node that contains it.
    #[error("recursive alias: it refers to a node that contains it")]
    Recursive,
    /// A tag that is not supported, or does not match its list or mapping. With
    /// [`YamlDialect::Core`](super::YamlDialect::Core), also one that does not match its scalar.
    #[error("unknown tag {0}: remove it")]
    Tag(String),
    /// With [`YamlDialect::Go`](super::YamlDialect::Go), a scalar that is not of the type of its
    /// tag, or whose tag `!!NAME` is unknown.
    #[error("the value does not have the type of its tag {0}")]
    Tagged(String),
    /// A merge key `<<` whose value is neither a mapping nor a list of mappings.
    #[error("expected a mapping, or a list of mappings, as the value of `<<`")]
    Merge,
    /// A mapping key that is not a string.
    #[error("expected a string as key, got {found}{}", if *quote { ": put it in quotes" } else { "" })]
    Key {
        found: &'static str,
        /// Set if quoting the key fixes the error.
        quote: bool,
    },
    /// A key that occurs twice in one mapping.
    #[error("duplicate key `{name}`, first in line {}: remove one of them", first.line)]
    DuplicateKey { name: String, first: TextPosition },
}

/// Returns a hint for an unknown name: the most similar known name, or all known names if they are few.
pub fn hint(name: &str, known: &[&str]) -> Option<String> {
    match closest_name(name, known.iter().copied()) {
        Some(meant) => Some(format!("did you mean `{meant}`?")),
        None if (1..=8).contains(&known.len()) => {
            Some(format!("expected one of {}", known.join(", ")))
        }
        None => None,
    }
}
