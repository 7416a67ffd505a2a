//! Deserializes a tree strictly.
//!
//! The types of `k8s-openapi` ignore unknown fields, but list the known fields. So this deserializer rejects
//! unknown fields, with the position and a suggestion.

use std::fmt::Display;
use std::iter::Enumerate;
use std::slice;

use oci_hooks_yaml::hint;
use serde::de::value::StrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::error::{PositionedProblem, TemplateProblem};
use super::node::{PodEntry, PodNode, PodValue};
use crate::quantity::is_quantity;

/// Deserializes the value at `path` of the document.
pub fn read<'de, T: Deserialize<'de>>(
    node: &'de PodNode,
    path: &str,
) -> Result<T, PositionedProblem> {
    T::deserialize(NodeDeserializer { node }).map_err(|error| {
        let mut error = error.with_segment(path, node);
        if let Some(path) = error.problem.path_mut().filter(|path| path.is_empty()) {
            path.push_str("the document");
        }
        error
    })
}

impl PositionedProblem {
    /// Prepends a segment to the path, and adds the position of the segment's node to a problem without one.
    fn with_segment(mut self, segment: &str, node: &PodNode) -> Self {
        self.position = self.position.or(node.origin.position());
        if let Some(path) = self.problem.path_mut() {
            let is_joined = segment.is_empty() || path.is_empty() || path.starts_with('[');
            let separator = if is_joined { "" } else { "." };
            path.insert_str(0, &format!("{segment}{separator}"));
        }
        self
    }
}

impl TemplateProblem {
    /// Returns the path of a problem that this deserializer reports.
    fn path_mut(&mut self) -> Option<&mut String> {
        match self {
            TemplateProblem::Type { path, .. }
            | TemplateProblem::UnknownField { path, .. }
            | TemplateProblem::Value { path, .. } => Some(path),
            _ => None,
        }
    }
}

impl serde::de::Error for PositionedProblem {
    fn custom<T: Display>(message: T) -> Self {
        let problem = TemplateProblem::Value { path: String::new(), message: message.to_string() };
        PositionedProblem::new(None, problem)
    }
}

#[derive(Clone, Copy)]
struct NodeDeserializer<'de> {
    node: &'de PodNode,
}

impl NodeDeserializer<'_> {
    fn into_type_error(self, expected: &'static str) -> PositionedProblem {
        let value = &self.node.value;
        let quote =
            expected == "a string" && matches!(value, PodValue::Bool(_) | PodValue::Number(_));
        let (path, found) = (String::new(), value.kind());
        PositionedProblem::new(None, TemplateProblem::Type { path, expected, found, quote })
    }
}

/// Methods that accept only values of one type.
macro_rules! typed {
    ($($method:ident: $pattern:pat $(if $guard:expr)? => $expected:literal,)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            match &self.node.value {
                $pattern $(if $guard)? => self.deserialize_any(visitor),
                _ => Err(self.into_type_error($expected)),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for NodeDeserializer<'de> {
    type Error = PositionedProblem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match &self.node.value {
            PodValue::Null => visitor.visit_unit(),
            PodValue::Bool(flag) => visitor.visit_bool(*flag),
            PodValue::Number(number) => {
                number.deserialize_any(visitor).map_err(PositionedProblem::custom)
            }
            PodValue::Text(text) => visitor.visit_borrowed_str(text),
            PodValue::List(items) => visitor.visit_seq(ItemsAccess(items.iter().enumerate())),
            PodValue::Map(fields) => {
                visitor.visit_map(FieldsAccess { fields: fields.iter(), value: None })
            }
        }
    }

    typed! {
        deserialize_bool: PodValue::Bool(_) => "true or false",
        deserialize_i32: PodValue::Number(number) if !number.is_f64() => "a whole number",
        deserialize_i64: PodValue::Number(number) if !number.is_f64() => "a whole number",
        deserialize_str: PodValue::Text(_) => "a string",
        deserialize_string: PodValue::Text(_) => "a string",
        deserialize_seq: PodValue::List(_) => "a list",
        deserialize_map: PodValue::Map(_) => "a mapping",
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
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
            return Err(PositionedProblem::custom(message));
        }
        visitor.visit_newtype_struct(StrDeserializer::new(&text))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        check_fields(self.node.fields(), known)?;
        self.deserialize_map(visitor)
    }

    // No field of a pod has one of these types.
    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple
        tuple_struct enum identifier ignored_any
    }
}

fn check_fields(fields: &[PodEntry], known: &[&str]) -> Result<(), PositionedProblem> {
    let Some(field) = fields.iter().find(|field| !known.contains(&field.name.as_str())) else {
        return Ok(());
    };
    let help = hint(&field.name, known)
        .unwrap_or_else(|| "the reference of the Kubernetes API lists its fields".to_owned());
    let (path, name) = (String::new(), field.name.clone());
    let problem = TemplateProblem::UnknownField { path, name, help };
    Err(PositionedProblem::new(field.origin.position(), problem))
}

struct ItemsAccess<'de>(Enumerate<slice::Iter<'de, PodNode>>);

impl<'de> SeqAccess<'de> for ItemsAccess<'de> {
    type Error = PositionedProblem;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Self::Error> {
        let Some((index, node)) = self.0.next() else { return Ok(None) };
        let value = seed.deserialize(NodeDeserializer { node });
        value.map(Some).map_err(|error| error.with_segment(&format!("[{index}]"), node))
    }
}

struct FieldsAccess<'de> {
    fields: slice::Iter<'de, PodEntry>,
    value: Option<&'de PodEntry>,
}

impl<'de> MapAccess<'de> for FieldsAccess<'de> {
    type Error = PositionedProblem;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Self::Error> {
        self.value = self.fields.next();
        let Some(field) = self.value else { return Ok(None) };
        seed.deserialize(StrDeserializer::new(&field.name)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, Self::Error> {
        let PodEntry { name, node, .. } = self.value.expect("the key is read first");
        let value = seed.deserialize(NodeDeserializer { node });
        value.map_err(|error| error.with_segment(name, node))
    }
}
