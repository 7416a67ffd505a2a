//! Nodes of YAML texts, and errors, with line and column.

use std::fmt;

use serde_json::Number;

/// Position of a node in the text, and its spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub position: Position,
    /// The unquoted word that was resolved as null, boolean or number, for example `1.10`; also that of a
    /// number that JSON does not have, such as `.inf`, whose value is text.
    pub word: Option<Box<str>>,
}

/// A value with its origin `O`.
#[derive(Clone, Debug, PartialEq)]
pub struct Node<O = Source> {
    pub origin: O,
    pub value: Value<O>,
}

/// A value of the YAML core schema.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<O = Source> {
    Null,
    Bool(bool),
    /// A number, exact up to 64 bits.
    Number(Number),
    Text(String),
    List(Vec<Node<O>>),
    /// Keys and values, without duplicate keys.
    Map(Vec<Field<O>>),
}

/// A key and its value. The order of fields is that of the document.
#[derive(Clone, Debug, PartialEq)]
pub struct Field<O = Source> {
    pub name: String,
    pub origin: O,
    pub node: Node<O>,
}

impl<O> Value<O> {
    /// Returns the type of the value, for messages. Never the value itself: it may be a secret.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

impl<O> Node<O> {
    /// Returns the tree with other origins.
    pub fn with_origins<P>(self, origin: fn(O) -> P) -> Node<P> {
        let value = match self.value {
            Value::Null => Value::Null,
            Value::Bool(flag) => Value::Bool(flag),
            Value::Number(number) => Value::Number(number),
            Value::Text(text) => Value::Text(text),
            Value::List(items) => {
                Value::List(items.into_iter().map(|item| item.with_origins(origin)).collect())
            }
            Value::Map(fields) => Value::Map(
                fields
                    .into_iter()
                    .map(|field| Field {
                        name: field.name,
                        origin: origin(field.origin),
                        node: field.node.with_origins(origin),
                    })
                    .collect(),
            ),
        };
        Node { origin: origin(self.origin), value }
    }

    /// Returns whether the value is null, which counts as absent.
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// Returns the value of a field that exists and is not null.
    pub fn get(&self, name: &str) -> Option<&Node<O>> {
        let field = self.fields().iter().find(|field| field.name == name)?;
        Some(&field.node).filter(|node| !node.is_null())
    }

    /// Returns the fields of a mapping; for other values, an empty slice.
    pub fn fields(&self) -> &[Field<O>] {
        match &self.value {
            Value::Map(fields) => fields,
            _ => &[],
        }
    }

    /// Returns the elements of a list; for other values, an empty slice.
    pub fn items(&self) -> &[Node<O>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }
}

/// A line and a column in a text, both from 1; columns are counted in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl fmt::Display for Position {
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
    pub position: Option<Position>,
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
pub struct Error {
    /// Line and column; `None` for the text as a whole.
    pub position: Option<Position>,
    pub problem: Problem,
}

impl Error {
    pub(super) fn new(position: impl Into<Option<Position>>, problem: Problem) -> Self {
        Error { position: position.into(), problem }
    }
}

/// Kinds of errors in any YAML text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
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
    /// A tag outside of YAML's core schema.
    #[error("unknown tag {0}: remove it")]
    Tag(String),
    /// A scalar that is not of the type of its tag.
    #[error("the value is not of the type of its tag {0}")]
    Tagged(String),
    /// A merge key `<<` whose value has no fields.
    #[error("`<<` merges a mapping, or a list of mappings")]
    Merge,
    /// A mapping key that is not a string.
    #[error("expected a string as key, got {found}{}", if *quote { ": put it in quotes" } else { "" })]
    Key {
        found: &'static str,
        /// Whether quoting the key fixes it.
        quote: bool,
    },
    /// A key that occurs twice in one mapping.
    #[error("duplicate key `{name}`, first in line {}: remove one of them", first.line)]
    DuplicateKey { name: String, first: Position },
}

/// Returns a hint for an unknown name: the most similar known name, or all known names if they are few.
pub fn hint(name: &str, known: &[&str]) -> Option<String> {
    let distance = |known: &str| strsim::osa_distance(&name.to_lowercase(), &known.to_lowercase());
    let best = known.iter().min_by_key(|known| distance(known));
    match best {
        _ if name == "<<" => Some("YAML 1.2 has no merge keys: write out the fields".to_owned()),
        Some(best) if distance(best) <= 1 + best.len() / 4 => {
            Some(format!("did you mean `{best}`?"))
        }
        Some(_) if known.len() <= 8 => Some(format!("expected one of {}", known.join(", "))),
        _ => None,
    }
}
