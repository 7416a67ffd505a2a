//! Parser for untrusted JSON.
//!
//! serde's messages quote unexpected values, which may be secrets; errors of this module name only the location.
//! A null member is treated as missing.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// An error for a JSON value of another type or form than expected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not {expected}", quote_pointer(pointer))]
pub struct JsonValueError {
    /// JSON pointer to the value.
    pub pointer: String,
    pub expected: &'static str,
}

/// Returns a JSON pointer for a message.
fn quote_pointer(pointer: &str) -> String {
    match pointer {
        "" => "the top-level value".to_owned(),
        _ => format!("{pointer:?}"),
    }
}

/// A JSON object; a missing one has no members.
pub struct JsonObject<'a> {
    members: Option<&'a Map<String, Value>>,
    /// JSON pointer to the object.
    pointer: String,
}

impl<'a> JsonObject<'a> {
    pub(super) fn of(value: &'a Value, pointer: String) -> Result<Self, JsonValueError> {
        match value {
            Value::Object(members) => Ok(JsonObject { members: Some(members), pointer }),
            _ => Err(JsonValueError { pointer, expected: "an object" }),
        }
    }

    /// Returns a member, unless it is missing or null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.members?.get(key).filter(|value| !value.is_null())
    }

    /// Returns the names of all members.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.members.into_iter().flat_map(|members| members.keys().map(String::as_str))
    }

    /// Returns the JSON pointer to a member.
    pub(super) fn pointer(&self, key: &str) -> String {
        format!("{}/{}", self.pointer, key.replace('~', "~0").replace('/', "~1"))
    }

    pub(super) fn value_error(&self, key: &str, expected: &'static str) -> JsonValueError {
        JsonValueError { pointer: self.pointer(key), expected }
    }

    pub(super) fn text(&self, key: &str) -> Result<String, JsonValueError> {
        match self.get(key) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(self.value_error(key, "a string")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, JsonValueError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.value_error(key, "true or false")),
        }
    }

    pub(super) fn array(&self, key: &str) -> Result<&'a [Value], JsonValueError> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Array(values)) => Ok(values),
            Some(_) => Err(self.value_error(key, "an array")),
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, JsonValueError> {
        let texts = self.array(key)?.iter().map(|value| value.as_str().map(str::to_owned));
        texts.collect::<Option<_>>().ok_or_else(|| self.value_error(key, "an array of strings"))
    }

    pub(super) fn object(&self, key: &str) -> Result<JsonObject<'a>, JsonValueError> {
        let pointer = self.pointer(key);
        match self.get(key) {
            None => Ok(JsonObject { members: None, pointer }),
            Some(value) => JsonObject::of(value, pointer),
        }
    }

    /// Returns the members of an object of strings; omits null members.
    pub(super) fn map_of_texts(
        &self,
        key: &str,
    ) -> Result<BTreeMap<String, String>, JsonValueError> {
        let object = self.object(key)?;
        let some = object.keys().filter(|name| object.get(name).is_some());
        some.map(|name| Ok((name.to_owned(), object.text(name)?))).collect()
    }

    pub(super) fn objects(&self, key: &str) -> Result<Vec<JsonObject<'a>>, JsonValueError> {
        let values = self.array(key)?.iter().enumerate();
        values.map(|(at, v)| JsonObject::of(v, format!("{}/{at}", self.pointer(key)))).collect()
    }
}
