//! A document as a tree of nodes with their origin.

use serde_json::Number;

use super::error::Position;

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
