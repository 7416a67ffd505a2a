//! Reading JSON that others wrote.
//!
//! `serde` would read it too, but its messages hold the values that it did not expect, and those may
//! be secrets. A member that is null is as good as none.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Something that is of another kind than it should be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pointer:?} is not {expected}")]
#[non_exhaustive]
pub struct KindError {
    /// Where it is, a JSON pointer.
    pub pointer: String,
    pub expected: &'static str,
}

/// An object, none being one without members.
pub struct Object<'a> {
    members: Option<&'a Map<String, Value>>,
    /// Where it is in its document.
    pointer: String,
}

impl<'a> Object<'a> {
    pub(super) fn of(value: &'a Value, pointer: String) -> Result<Self, KindError> {
        match value {
            Value::Object(members) => Ok(Object { members: Some(members), pointer }),
            _ => Err(KindError { pointer, expected: "an object" }),
        }
    }

    /// Returns a member that is there and not null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.members?.get(key).filter(|value| !value.is_null())
    }

    /// Returns the names of all members.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.members.into_iter().flat_map(|members| members.keys().map(String::as_str))
    }

    /// Returns where a member is in the document.
    pub(super) fn pointer(&self, key: &str) -> String {
        format!("{}/{}", self.pointer, key.replace('~', "~0").replace('/', "~1"))
    }

    pub(super) fn wrong(&self, key: &str, expected: &'static str) -> KindError {
        KindError { pointer: self.pointer(key), expected }
    }

    pub(super) fn text(&self, key: &str) -> Result<String, KindError> {
        match self.get(key) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, KindError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    pub(super) fn array(&self, key: &str) -> Result<&'a [Value], KindError> {
        match self.get(key) {
            None => Ok(&[]),
            Some(Value::Array(values)) => Ok(values),
            Some(_) => Err(self.wrong(key, "an array")),
        }
    }

    pub(super) fn texts(&self, key: &str) -> Result<Vec<String>, KindError> {
        let texts = self.array(key)?.iter().map(|value| value.as_str().map(str::to_owned));
        texts.collect::<Option<_>>().ok_or_else(|| self.wrong(key, "an array of strings"))
    }

    pub(super) fn object(&self, key: &str) -> Result<Object<'a>, KindError> {
        let pointer = self.pointer(key);
        match self.get(key) {
            None => Ok(Object { members: None, pointer }),
            Some(value) => Object::of(value, pointer),
        }
    }

    /// Returns the members of an object, all of which are strings, where they are not null.
    pub(super) fn map_of_texts(&self, key: &str) -> Result<BTreeMap<String, String>, KindError> {
        let object = self.object(key)?;
        let some = object.keys().filter(|name| object.get(name).is_some());
        some.map(|name| Ok((name.to_owned(), object.text(name)?))).collect()
    }

    pub(super) fn objects(&self, key: &str) -> Result<Vec<Object<'a>>, KindError> {
        let values = self.array(key)?.iter().enumerate();
        values.map(|(at, v)| Object::of(v, format!("{}/{at}", self.pointer(key)))).collect()
    }
}
