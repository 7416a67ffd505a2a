//! A document as a tree of which every part knows where it came from.

use serde_json::Number;

use super::error::Position;

/// Where a part of a text stands, and how it is written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where it begins.
    pub position: Position,
    /// The word that was taken for null, true or false, or a number: `1.10`.
    pub word: Option<Box<str>>,
}

/// A value; `O` says where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Node<O = Source> {
    /// Where it came from.
    pub origin: O,
    /// What it is.
    pub value: Value<O>,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<O = Source> {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A number, as exact as it is written up to 64 bits.
    Number(Number),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node<O>>),
    /// Keys and values; no key is there twice.
    Map(Vec<Field<O>>),
}

/// A key and its value. The order of fields is that of the document.
#[derive(Clone, Debug, PartialEq)]
pub struct Field<O = Source> {
    /// The key.
    pub name: String,
    /// Where the key came from.
    pub origin: O,
    /// The value.
    pub node: Node<O>,
}

impl<O> Value<O> {
    /// Says what the value is, for messages. Never the value: it may be a secret.
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

    /// Tells if this is null, which is as good as absent.
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// Returns the value of a field that is there and not null.
    pub fn get(&self, name: &str) -> Option<&Node<O>> {
        let field = self.fields().iter().find(|field| field.name == name)?;
        Some(&field.node).filter(|node| !node.is_null())
    }

    /// Returns the fields; of what is no mapping, none.
    pub fn fields(&self) -> &[Field<O>] {
        match &self.value {
            Value::Map(fields) => fields,
            _ => &[],
        }
    }

    /// Returns the elements of a list; of what is none, none.
    pub fn items(&self) -> &[Node<O>] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }
}
