//! Deserializes a tree strictly.
//!
//! The types of `k8s-openapi` ignore unknown fields, but list the known fields. So this deserializer rejects
//! unknown fields, with the position and a suggestion.

use oci_hooks_yaml::{TextPosition, hint};
use serde::de::value::StrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IntoDeserializer as _, MapAccess,
    SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Number;

use super::error::{PositionedProblem, TemplateProblem};
use super::node::{PodEntry, PodNode, PodValue};
use crate::quantity::is_quantity;

/// Deserializes the value at `path` of the document.
pub fn read<'de, T: Deserialize<'de>>(
    node: &'de PodNode,
    path: &str,
) -> Result<T, PositionedProblem> {
    T::deserialize(NodeDeserializer { node })
        .map_err(|error| error.with_segment(path.to_owned()).into_fault(node))
}

/// An error; each caller adds a segment to its path.
#[derive(Debug)]
struct DeserializeError {
    position: Option<TextPosition>,
    /// Segments, innermost first.
    path: Vec<String>,
    kind: MismatchKind,
}

#[derive(Debug)]
enum MismatchKind {
    Type { expected: &'static str, found: &'static str, quote: bool },
    Unknown { name: String, help: String },
    Message(String),
}

impl DeserializeError {
    fn with_segment(mut self, segment: String) -> Self {
        self.path.push(segment);
        self
    }

    fn into_fault(self, node: &PodNode) -> PositionedProblem {
        let mut path = String::new();
        for segment in self.path.iter().rev() {
            let separator = if path.is_empty() || segment.starts_with('[') { "" } else { "." };
            path += separator;
            path += segment;
        }
        if path.is_empty() {
            path += "the document";
        }
        let problem = match self.kind {
            MismatchKind::Type { expected, found, quote } => {
                TemplateProblem::Type { path, expected, found, quote }
            }
            MismatchKind::Unknown { name, help } => {
                TemplateProblem::UnknownField { path, name, help }
            }
            MismatchKind::Message(message) => TemplateProblem::Value { path, message },
        };
        PositionedProblem::new(self.position.or(node.origin.position()), problem)
    }
}

impl std::fmt::Display for DeserializeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for DeserializeError {}

impl serde::de::Error for DeserializeError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        DeserializeError {
            position: None,
            path: Vec::new(),
            kind: MismatchKind::Message(message.to_string()),
        }
    }
}

#[derive(Clone, Copy)]
struct NodeDeserializer<'de> {
    node: &'de PodNode,
}

impl<'de> NodeDeserializer<'de> {
    fn into_type_error(self, expected: &'static str) -> DeserializeError {
        let value = &self.node.value;
        let quote =
            expected == "a string" && matches!(value, PodValue::Bool(_) | PodValue::Number(_));
        let kind = MismatchKind::Type { expected, found: value.kind(), quote };
        DeserializeError { position: self.node.origin.position(), path: Vec::new(), kind }
    }

    fn number(self, expected: &'static str) -> Result<&'de Number, DeserializeError> {
        match &self.node.value {
            PodValue::Number(number) => Ok(number),
            _ => Err(self.into_type_error(expected)),
        }
    }

    fn integer<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        const EXPECTED: &str = "a whole number";
        let number = self.number(EXPECTED)?;
        match number.as_i64() {
            Some(number) => visitor.visit_i64(number),
            None => match number.as_u64() {
                Some(number) => visitor.visit_u64(number),
                None => Err(self.into_type_error(EXPECTED)),
            },
        }
    }

    /// Adds this value's position to an error without one.
    fn add_position(self, error: DeserializeError) -> DeserializeError {
        DeserializeError { position: error.position.or(self.node.origin.position()), ..error }
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
            self.integer(visitor).map_err(|error| self.add_position(error))
        }
    )*};
}

impl<'de> Deserializer<'de> for NodeDeserializer<'de> {
    type Error = DeserializeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        let result = match &self.node.value {
            PodValue::Null => visitor.visit_unit(),
            PodValue::Bool(flag) => visitor.visit_bool(*flag),
            PodValue::Number(number) => {
                number.deserialize_any(visitor).map_err(DeserializeError::custom)
            }
            PodValue::Text(text) => visitor.visit_borrowed_str(text),
            PodValue::List(items) => visitor.visit_seq(Items { items, index: 0 }),
            PodValue::Map(fields) => visitor.visit_map(FieldsAccess { fields, value: None }),
        };
        result.map_err(|error| self.add_position(error))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.value {
            PodValue::Bool(flag) => visitor.visit_bool(*flag),
            _ => Err(self.into_type_error("true or false")),
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        let number = self.number("a number")?.as_f64();
        visitor.visit_f64(number.ok_or_else(|| self.into_type_error("a number"))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.value {
            PodValue::Text(text) => {
                visitor.visit_borrowed_str(text).map_err(|error| self.add_position(error))
            }
            _ => Err(self.into_type_error("a string")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        if name != "Quantity" {
            return visitor.visit_newtype_struct(self);
        }
        // Kubernetes accepts a number or a string: `cpu: 2`.
        let text = match &self.node.value {
            PodValue::Number(number) => number.to_string(),
            PodValue::Text(text) => text.clone(),
            _ => return Err(self.into_type_error("a quantity like 500m or 2Gi")),
        };
        if !is_quantity(&text) {
            let message =
                "is not a quantity; write a number, perhaps with a suffix: 500m, 2Gi, 1.5G";
            return Err(self.add_position(DeserializeError::custom(message)));
        }
        let text: StrDeserializer<'_, DeserializeError> = text.as_str().into_deserializer();
        visitor.visit_newtype_struct(text)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.value {
            PodValue::List(items) => visitor.visit_seq(Items { items, index: 0 }),
            _ => Err(self.into_type_error("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.value {
            PodValue::Map(fields) => visitor
                .visit_map(FieldsAccess { fields, value: None })
                .map_err(|error| self.add_position(error)),
            _ => Err(self.into_type_error("a mapping")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        unknown(self.node.fields(), known)?;
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

fn unknown(fields: &[PodEntry], known: &[&str]) -> Result<(), DeserializeError> {
    let Some(field) = fields.iter().find(|field| !known.contains(&field.name.as_str())) else {
        return Ok(());
    };
    let help = hint(&field.name, known)
        .unwrap_or_else(|| "see the reference of the Kubernetes API for those it has".to_owned());
    let kind = MismatchKind::Unknown { name: field.name.clone(), help };
    Err(DeserializeError { position: field.origin.position(), path: Vec::new(), kind })
}

struct Items<'de> {
    items: &'de [PodNode],
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DeserializeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DeserializeError> {
        let Some(node) = self.items.get(self.index) else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        let value = seed.deserialize(NodeDeserializer { node });
        value.map(Some).map_err(|error| error.with_segment(format!("[{index}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.index)
    }
}

struct FieldsAccess<'de> {
    fields: &'de [PodEntry],
    value: Option<&'de PodEntry>,
}

impl<'de> MapAccess<'de> for FieldsAccess<'de> {
    type Error = DeserializeError;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DeserializeError> {
        let Some((field, rest)) = self.fields.split_first() else { return Ok(None) };
        self.fields = rest;
        self.value = Some(field);
        let name: StrDeserializer<'_, DeserializeError> = field.name.as_str().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, DeserializeError> {
        let field =
            self.value.take().ok_or_else(|| DeserializeError::custom("a value without a key"))?;
        let value = seed.deserialize(NodeDeserializer { node: &field.node });
        value.map_err(|error| error.with_segment(field.name.clone()))
    }
}
