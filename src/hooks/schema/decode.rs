//! Go's rules for decoding JSON values into fields.
//!
//! Every occurrence of a key is applied in document order, so that later ones extend or replace
//! earlier ones. The first value of the wrong type makes the file invalid, but decoding continues.

use std::collections::BTreeMap;

use crate::hooks::{HookError, HookFault};
use crate::json::{JsonKind, JsonValue, folds_to};

/// A decoded string and its position.
#[derive(Clone, Debug, Default)]
pub struct DecodedText<'d> {
    pub text: String,
    pub at: Option<JsonValue<'d>>,
}

/// A list of strings, including the slots that Go's slice keeps beyond its end.
///
/// `null` elements leave their slot unchanged: `["a","b"]` and later `[null]` make `["a"]`.
#[derive(Clone, Debug, Default)]
pub struct TextList<'d> {
    slots: Vec<DecodedText<'d>>,
    len: Option<usize>,
}

impl<'d> TextList<'d> {
    /// Returns the strings; `None` if the field is missing or null.
    pub fn into_texts(self) -> Option<Vec<DecodedText<'d>>> {
        let mut texts = self.slots;
        texts.truncate(self.len?);
        Some(texts)
    }

    pub(super) fn is_set(&self) -> bool {
        self.len.is_some()
    }
}

/// Annotation patterns by key, each with the position of its key.
pub type TextMap<'d> = BTreeMap<String, (JsonValue<'d>, DecodedText<'d>)>;

/// Decodes values into fields, and keeps the first type error.
#[derive(Default)]
pub struct FieldDecoder {
    fault: Option<HookFault>,
}

impl FieldDecoder {
    /// Returns the decoded value, or the first type error.
    pub fn finish<T>(self, decoded: T) -> Result<T, HookFault> {
        self.fault.map_or(Ok(decoded), Err)
    }

    /// Calls `field` for each member whose key Go decodes into one of `names`, with that name and
    /// the value. `null` has no members.
    pub fn object<'d>(
        &mut self,
        value: JsonValue<'d>,
        names: &[&'static str],
        mut field: impl FnMut(&mut Self, &'static str, JsonValue<'d>),
    ) {
        match value.kind() {
            JsonKind::Null => {}
            JsonKind::Object => {
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

    pub(super) fn string<'d>(&mut self, value: JsonValue<'d>, into: &mut DecodedText<'d>) {
        match value.as_str() {
            Some(text) => *into = DecodedText { text: text.into_owned(), at: Some(value) },
            None if value.is_null() => {}
            None => self.mismatch(value, "a string"),
        }
    }

    pub(super) fn read_optional_string<'d>(
        &mut self,
        value: JsonValue<'d>,
        into: &mut Option<DecodedText<'d>>,
    ) {
        if value.is_null() {
            *into = None;
        } else {
            self.string(value, into.get_or_insert_default());
        }
    }

    pub(super) fn read_optional_bool(&mut self, value: JsonValue<'_>, into: &mut Option<bool>) {
        match value.as_bool() {
            Some(value) => *into = Some(value),
            None if value.is_null() => *into = None,
            None => self.mismatch(value, "a boolean"),
        }
    }

    pub(super) fn read_optional_integer(&mut self, value: JsonValue<'_>, into: &mut Option<i64>) {
        match value.as_i64() {
            Some(value) => *into = Some(value),
            None if value.is_null() => *into = None,
            None => self.mismatch(value, "an integer"),
        }
    }

    pub(super) fn strings<'d>(&mut self, value: JsonValue<'d>, into: &mut TextList<'d>) {
        match value.kind() {
            JsonKind::Null => *into = TextList::default(),
            JsonKind::Array => {
                let mut len = 0;
                for element in value.elements() {
                    if len == into.slots.len() {
                        into.slots.push(DecodedText { text: String::new(), at: Some(element) });
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

    pub(super) fn string_map<'d>(&mut self, value: JsonValue<'d>, into: &mut TextMap<'d>) {
        match value.kind() {
            JsonKind::Null => into.clear(),
            JsonKind::Object => {
                for member in value.members() {
                    let mut text = DecodedText { text: String::new(), at: Some(member.value) };
                    self.string(member.value, &mut text);
                    let key = member.key.as_str().unwrap_or_default().into_owned();
                    into.insert(key, (member.key, text));
                }
            }
            _ => self.mismatch(value, "an object of strings"),
        }
    }

    fn mismatch(&mut self, value: JsonValue<'_>, expected: &'static str) {
        self.fault.get_or_insert_with(|| HookFault {
            error: HookError::Type { expected, found: value.kind().name() },
            location: Some(value.location()),
        });
    }
}
