//! Reading a JSON value field by field, knowing where one is.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::RequestError;

/// A value in the request and the JSON pointer to it; none where a field is absent or null.
pub struct Node<'a> {
    value: Option<&'a Value>,
    pointer: String,
}

impl<'a> Node<'a> {
    /// Starts at the whole document.
    pub(super) fn root(value: &'a Value) -> Self {
        Node { value: Some(value), pointer: String::new() }
    }

    /// Goes to a field of an object, or to nothing if there is none.
    pub(super) fn field(&self, name: &str) -> Result<Node<'a>, RequestError> {
        let value = self.object()?.and_then(|object| object.get(name));
        let pointer = format!("{}/{}", self.pointer, escape(name));
        Ok(Node { value: value.filter(|value| !value.is_null()), pointer })
    }

    /// Goes to the first of several fields that is given: one thing under two names.
    pub(super) fn either(&self, name: &str, other: &str) -> Result<Node<'a>, RequestError> {
        let node = self.field(name)?;
        let other = self.field(other)?;
        Ok(if node.is_absent() && !other.is_absent() { other } else { node })
    }

    /// Whether the field is absent or null.
    pub(super) fn is_absent(&self) -> bool {
        self.value.is_none()
    }

    /// Returns nothing for an absent value.
    pub(super) fn present(self) -> Option<Node<'a>> {
        (!self.is_absent()).then_some(self)
    }

    /// Returns the error that something is wrong with this value.
    pub(super) fn error(&self, problem: impl Into<String>) -> RequestError {
        RequestError::Field { pointer: self.pointer.clone(), problem: problem.into() }
    }

    /// Returns a string; none if there is no value.
    pub(super) fn text(&self) -> Result<Option<String>, RequestError> {
        match self.value {
            None => Ok(None),
            // Neither a path nor an argument nor a variable can hold one.
            Some(Value::String(text)) if text.contains('\0') => {
                Err(self.error("has a NUL character, which no container can be given"))
            }
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(self.mismatch("a string", other)),
        }
    }

    /// Returns a text, or nothing if it is empty.
    pub(super) fn non_empty_text(&self) -> Result<Option<String>, RequestError> {
        Ok(self.text()?.filter(|text| !text.is_empty()))
    }

    /// Returns a text that has to be there.
    pub(super) fn required_text(&self) -> Result<String, RequestError> {
        self.non_empty_text()?.ok_or_else(|| self.error("must be a string that is not empty"))
    }

    /// Returns a truth value, false if it is absent.
    pub(super) fn flag(&self) -> Result<bool, RequestError> {
        match self.value {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.mismatch("true or false", other)),
        }
    }

    /// Reads each element of a list, none if it is absent.
    pub(super) fn list<T>(
        &self,
        mut read: impl FnMut(Node<'a>) -> Result<T, RequestError>,
    ) -> Result<Vec<T>, RequestError> {
        let elements = match self.value {
            None => return Ok(Vec::new()),
            Some(Value::Array(elements)) => elements,
            Some(other) => return Err(self.mismatch("a list", other)),
        };
        let nodes = elements.iter().enumerate().map(|(index, value)| Node {
            value: Some(value).filter(|value| !value.is_null()),
            pointer: format!("{}/{index}", self.pointer),
        });
        nodes.map(&mut read).collect()
    }

    /// Returns a list of texts.
    pub(super) fn texts(&self) -> Result<Vec<String>, RequestError> {
        self.list(|node| node.text()?.ok_or_else(|| node.error("must be a string, it is null")))
    }

    /// Returns one text or a list of them.
    pub(super) fn text_or_texts(&self) -> Result<Vec<String>, RequestError> {
        match self.value {
            Some(Value::String(_)) => Ok(self.non_empty_text()?.into_iter().collect()),
            _ => self.texts(),
        }
    }

    /// Returns a map of texts.
    pub(super) fn text_map(&self) -> Result<BTreeMap<String, String>, RequestError> {
        let Some(object) = self.object()? else { return Ok(BTreeMap::new()) };
        let fields = object.keys().map(|name| {
            let text = self.field(name)?.text()?.unwrap_or_default();
            Ok((name.clone(), text))
        });
        fields.collect()
    }

    /// Returns the fields of an object.
    pub(super) fn object(&self) -> Result<Option<&'a Map<String, Value>>, RequestError> {
        match self.value {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.mismatch("an object", other)),
        }
    }

    /// Whether the value is an object.
    pub(super) fn is_object(&self) -> bool {
        self.value.is_some_and(Value::is_object)
    }

    // What the value is does not belong in the message: it may be a secret.
    fn mismatch(&self, expected: &str, value: &Value) -> RequestError {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        self.error(format!("must be {expected}, not {found}"))
    }
}

/// Escapes a field's name for a JSON pointer (RFC 6901).
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
