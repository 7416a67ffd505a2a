//! Go's rules for putting JSON values into fields.
//!
//! Every occurrence of a key is applied in document order, so that later ones add to or replace what
//! earlier ones left. The first value of a wrong type makes the file unusable, but decoding goes on.

use std::collections::BTreeMap;

use crate::hooks::{Fault, HookError};
use crate::json::{Kind, Value, folds_to};

/// A decoded string and where it stood.
#[derive(Clone, Debug, Default)]
pub struct Text<'d> {
    pub text: String,
    pub at: Option<Value<'d>>,
}

/// A list of strings with the slots that Go's slice keeps behind its end.
///
/// `null` elements leave their slot as it is: `["a","b"]` and later `[null]` make `["a"]`.
#[derive(Clone, Debug, Default)]
pub struct TextList<'d> {
    slots: Vec<Text<'d>>,
    len: Option<usize>,
}

impl<'d> TextList<'d> {
    /// Returns the strings; `None` if the field was missing or null.
    pub fn into_texts(self) -> Option<Vec<Text<'d>>> {
        let mut texts = self.slots;
        texts.truncate(self.len?);
        Some(texts)
    }

    pub(super) fn is_set(&self) -> bool {
        self.len.is_some()
    }
}

/// Annotation patterns by key, each with where its key stands.
pub type TextMap<'d> = BTreeMap<String, (Value<'d>, Text<'d>)>;

/// Puts values into fields and keeps the first type error.
#[derive(Default)]
pub struct Decoder {
    fault: Option<Fault>,
}

impl Decoder {
    /// Returns what was decoded, unless a value was of the wrong type.
    pub fn finish<T>(self, decoded: T) -> Result<T, Fault> {
        self.fault.map_or(Ok(decoded), Err)
    }

    /// Calls `field` with the name from `names` and the value of each member whose key Go takes for
    /// that name. `null` is nothing to go through.
    pub fn object<'d>(
        &mut self,
        value: Value<'d>,
        names: &[&'static str],
        mut field: impl FnMut(&mut Self, &'static str, Value<'d>),
    ) {
        match value.kind() {
            Kind::Null => {}
            Kind::Object => {
                for member in value.members() {
                    let key = member.key.as_str().unwrap_or_default();
                    if let Some(name) = names.iter().find(|name| folds_to(&key, name)) {
                        field(self, name, member.value);
                    }
                }
            }
            _ => self.mismatch(value, "an object"),
        }
    }

    pub(super) fn string<'d>(&mut self, value: Value<'d>, into: &mut Text<'d>) {
        match value.as_str() {
            Some(text) => *into = Text { text: text.into_owned(), at: Some(value) },
            None if value.is_null() => {}
            None => self.mismatch(value, "a string"),
        }
    }

    pub(super) fn optional_string<'d>(&mut self, value: Value<'d>, into: &mut Option<Text<'d>>) {
        if value.is_null() {
            *into = None;
        } else {
            self.string(value, into.get_or_insert_default());
        }
    }

    pub(super) fn optional_bool(&mut self, value: Value<'_>, into: &mut Option<bool>) {
        match value.as_bool() {
            Some(value) => *into = Some(value),
            None if value.is_null() => *into = None,
            None => self.mismatch(value, "a boolean"),
        }
    }

    pub(super) fn optional_integer(&mut self, value: Value<'_>, into: &mut Option<i64>) {
        match value.as_i64() {
            Some(value) => *into = Some(value),
            None if value.is_null() => *into = None,
            None => self.mismatch(value, "an integer"),
        }
    }

    pub(super) fn strings<'d>(&mut self, value: Value<'d>, into: &mut TextList<'d>) {
        match value.kind() {
            Kind::Null => *into = TextList::default(),
            Kind::Array => {
                let mut len = 0;
                for element in value.elements() {
                    if len == into.slots.len() {
                        into.slots.push(Text { text: String::new(), at: Some(element) });
                    }
                    self.string(element, &mut into.slots[len]);
                    len += 1;
                }
                if len == 0 {
                    into.slots.clear();
                }
                into.len = Some(len);
            }
            _ => self.mismatch(value, "an array of strings"),
        }
    }

    pub(super) fn string_map<'d>(&mut self, value: Value<'d>, into: &mut TextMap<'d>) {
        match value.kind() {
            Kind::Null => into.clear(),
            Kind::Object => {
                for member in value.members() {
                    let mut text = Text { text: String::new(), at: Some(member.value) };
                    self.string(member.value, &mut text);
                    let key = member.key.as_str().unwrap_or_default().into_owned();
                    into.insert(key, (member.key, text));
                }
            }
            _ => self.mismatch(value, "an object of strings"),
        }
    }

    fn mismatch(&mut self, value: Value<'_>, expected: &'static str) {
        self.fault.get_or_insert_with(|| Fault {
            error: HookError::Type { expected, found: value.kind().name() },
            location: Some(value.location()),
        });
    }
}
