//! Values of the request with their JSON pointers, for errors.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::RequestError;

/// A value in the request with its JSON pointer; the value is none if the field is absent or null.
pub struct RequestNode<'a> {
    value: Option<&'a Value>,
    pointer: String,
}

impl<'a> RequestNode<'a> {
    pub(super) fn root(value: &'a Value) -> Self {
        RequestNode { value: Some(value), pointer: String::new() }
    }

    /// Returns the node of an object's field, which may be absent.
    pub(super) fn field(&self, name: &str) -> Result<RequestNode<'a>, RequestError> {
        let value = self.object()?.and_then(|object| object.get(name));
        let pointer = format!("{}/{}", self.pointer, escape(name));
        Ok(RequestNode { value: value.filter(|value| !value.is_null()), pointer })
    }

    /// Returns the field with the first of two names that is present.
    pub(super) fn first_present(
        &self,
        name: &str,
        other: &str,
    ) -> Result<RequestNode<'a>, RequestError> {
        let node = self.field(name)?;
        let other = self.field(other)?;
        Ok(if node.is_absent() && !other.is_absent() { other } else { node })
    }

    /// Returns whether the field is absent or null.
    pub(super) fn is_absent(&self) -> bool {
        self.value.is_none()
    }

    /// Returns the node, or none if the value is absent.
    pub(super) fn into_present(self) -> Option<RequestNode<'a>> {
        (!self.is_absent()).then_some(self)
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> RequestError {
        RequestError::Field { pointer: self.pointer.clone(), problem: problem.into() }
    }

    /// Returns a string; none if the value is absent.
    pub(super) fn text(&self) -> Result<Option<String>, RequestError> {
        match self.value {
            None => Ok(None),
            // Paths, arguments and environment variables cannot contain NUL.
            Some(Value::String(text)) if text.contains('\0') => {
                Err(self.error("has a NUL character, which cannot be passed to a container"))
            }
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(self.mismatch("a string", other)),
        }
    }

    /// Returns a string; none if it is absent or empty.
    pub(super) fn non_empty_text(&self) -> Result<Option<String>, RequestError> {
        Ok(self.text()?.filter(|text| !text.is_empty()))
    }

    /// Returns a required, non-empty string.
    pub(super) fn required_text(&self) -> Result<String, RequestError> {
        self.non_empty_text()?.ok_or_else(|| self.error("must be a string that is not empty"))
    }

    /// Returns a boolean; false if it is absent.
    pub(super) fn flag(&self) -> Result<bool, RequestError> {
        match self.value {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.mismatch("true or false", other)),
        }
    }

    /// Reads each element of a list; an absent list is empty.
    pub(super) fn list<T>(
        &self,
        mut read: impl FnMut(RequestNode<'a>) -> Result<T, RequestError>,
    ) -> Result<Vec<T>, RequestError> {
        let elements = match self.value {
            None => return Ok(Vec::new()),
            Some(Value::Array(elements)) => elements,
            Some(other) => return Err(self.mismatch("a list", other)),
        };
        let nodes = elements.iter().enumerate().map(|(index, value)| RequestNode {
            value: Some(value).filter(|value| !value.is_null()),
            pointer: format!("{}/{index}", self.pointer),
        });
        nodes.map(&mut read).collect()
    }

    pub(super) fn texts(&self) -> Result<Vec<String>, RequestError> {
        self.list(|node| node.text()?.ok_or_else(|| node.error("must be a string, not null")))
    }

    /// Returns a list of strings; a single string is a list of one.
    pub(super) fn text_or_texts(&self) -> Result<Vec<String>, RequestError> {
        match self.value {
            Some(Value::String(_)) => Ok(self.non_empty_text()?.into_iter().collect()),
            _ => self.texts(),
        }
    }

    pub(super) fn text_map(&self) -> Result<BTreeMap<String, String>, RequestError> {
        let Some(object) = self.object()? else { return Ok(BTreeMap::new()) };
        let fields = object.keys().map(|name| {
            let text = self.field(name)?.text()?.unwrap_or_default();
            Ok((name.clone(), text))
        });
        fields.collect()
    }

    /// Returns the fields of an object; none if it is absent.
    pub(super) fn object(&self) -> Result<Option<&'a Map<String, Value>>, RequestError> {
        match self.value {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(other) => Err(self.mismatch("an object", other)),
        }
    }

    pub(super) fn is_object(&self) -> bool {
        self.value.is_some_and(Value::is_object)
    }

    // The message names the type, not the value, which may be a secret.
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
