//! A tree to typed values, strictly.
//!
//! The types of `k8s-openapi` pass over fields that they do not know. They do name those that they
//! know, and here all others are refused, with their place and the name that was perhaps meant.

use serde::de::value::StrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IntoDeserializer as _, MapAccess,
    SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Number;

use super::error::{Fault, Problem};
use super::node::{Field, Node, Value};
use crate::yaml::{Position, hint};

/// Reads a value that is at `path` of the document.
pub fn read<'de, T: Deserialize<'de>>(node: &'de Node, path: &str) -> Result<T, Fault> {
    T::deserialize(Typed { node }).map_err(|error| error.below(path.to_owned()).into_fault(node))
}

/// What is wrong, and on the way up, where.
#[derive(Debug)]
struct Error {
    position: Option<Position>,
    /// From the inside to the outside.
    path: Vec<String>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Type { expected: &'static str, found: &'static str, quote: bool },
    Unknown { name: String, help: String },
    Message(String),
}

impl Error {
    fn below(mut self, segment: String) -> Self {
        self.path.push(segment);
        self
    }

    fn into_fault(self, node: &Node) -> Fault {
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
            Kind::Type { expected, found, quote } => Problem::Type { path, expected, found, quote },
            Kind::Unknown { name, help } => Problem::UnknownField { path, name, help },
            Kind::Message(message) => Problem::Value { path, message },
        };
        Fault::new(self.position.or(node.position()), problem)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for Error {}

impl serde::de::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Error { position: None, path: Vec::new(), kind: Kind::Message(message.to_string()) }
    }
}

/// A value to be read.
#[derive(Clone, Copy)]
struct Typed<'de> {
    node: &'de Node,
}

impl<'de> Typed<'de> {
    fn wrong(self, expected: &'static str) -> Error {
        let value = &self.node.value;
        let quote = expected == "a string" && matches!(value, Value::Bool(_) | Value::Number(_));
        let kind = Kind::Type { expected, found: value.kind(), quote };
        Error { position: self.node.position(), path: Vec::new(), kind }
    }

    fn number(self, expected: &'static str) -> Result<&'de Number, Error> {
        match &self.node.value {
            Value::Number(number) => Ok(number),
            _ => Err(self.wrong(expected)),
        }
    }

    fn integer<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        const EXPECTED: &str = "a whole number";
        let number = self.number(EXPECTED)?;
        match number.as_i64() {
            Some(number) => visitor.visit_i64(number),
            None => match number.as_u64() {
                Some(number) => visitor.visit_u64(number),
                None => Err(self.wrong(EXPECTED)),
            },
        }
    }

    /// Adds the place to an error of the types themselves.
    fn here(self, error: Error) -> Error {
        Error { position: error.position.or(self.node.position()), ..error }
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.integer(visitor).map_err(|error| self.here(error))
        }
    )*};
}

impl<'de> Deserializer<'de> for Typed<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let result = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => number.deserialize_any(visitor).map_err(Error::custom),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(Items { items, index: 0 }),
            Value::Map(fields) => visitor.visit_map(Fields { fields, value: None }),
        };
        result.map_err(|error| self.here(error))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::Bool(flag) => visitor.visit_bool(*flag),
            _ => Err(self.wrong("true or false")),
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let number = self.number("a number")?.as_f64();
        visitor.visit_f64(number.ok_or_else(|| self.wrong("a number"))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_borrowed_str(text).map_err(|error| self.here(error)),
            _ => Err(self.wrong("a string")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name != "Quantity" {
            return visitor.visit_newtype_struct(self);
        }
        // Kubernetes takes a number as well as a string: `cpu: 2`.
        let text = match &self.node.value {
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text.clone(),
            _ => return Err(self.wrong("a quantity like 500m or 2Gi")),
        };
        if !is_quantity(&text) {
            let message =
                "is not a quantity; write a number, perhaps with a suffix: 500m, 2Gi, 1.5G";
            return Err(self.here(Error::custom(message)));
        }
        let text: StrDeserializer<'_, Error> = text.as_str().into_deserializer();
        visitor.visit_newtype_struct(text)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::List(items) => visitor.visit_seq(Items { items, index: 0 }),
            _ => Err(self.wrong("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::Map(fields) => {
                visitor.visit_map(Fields { fields, value: None }).map_err(|error| self.here(error))
            }
            _ => Err(self.wrong("a mapping")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        unknown(self.node.fields(), known)?;
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

fn unknown(fields: &[Field], known: &[&str]) -> Result<(), Error> {
    let Some(field) = fields.iter().find(|field| !known.contains(&field.name.as_str())) else {
        return Ok(());
    };
    let help = hint(&field.name, known)
        .unwrap_or_else(|| "see the reference of the Kubernetes API for those it has".to_owned());
    let kind = Kind::Unknown { name: field.name.clone(), help };
    Err(Error { position: field.origin.position(), path: Vec::new(), kind })
}

/// The elements of a list, one after the other.
struct Items<'de> {
    items: &'de [Node],
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some(node) = self.items.get(self.index) else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        let value = seed.deserialize(Typed { node });
        value.map(Some).map_err(|error| error.below(format!("[{index}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.index)
    }
}

/// The fields of a mapping, one after the other.
struct Fields<'de> {
    fields: &'de [Field],
    value: Option<&'de Field>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Error> {
        let Some((field, rest)) = self.fields.split_first() else { return Ok(None) };
        self.fields = rest;
        self.value = Some(field);
        let name: StrDeserializer<'_, Error> = field.name.as_str().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let field = self.value.take().ok_or_else(|| Error::custom("a value without a key"))?;
        let value = seed.deserialize(Typed { node: &field.node });
        value.map_err(|error| error.below(field.name.clone()))
    }
}

/// Returns whether a text is a [quantity]: a decimal number, then a suffix or an exponent.
///
/// [quantity]: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let is_number = number.matches('.').count() <= 1 && number.contains(|c: char| c != '.');
    is_number && is_suffix(suffix)
}

fn is_suffix(suffix: &str) -> bool {
    if let Some(exponent) = suffix.strip_prefix(['e', 'E']) {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        // A lone `E` is a suffix, that of 10^18; so is `Ei`.
        return suffix == "E"
            || exponent == "i" && suffix == "Ei"
            || !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    }
    let known = ["", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"];
    known.contains(&suffix)
}

#[cfg(test)]
mod tests {
    use super::is_quantity;

    #[test]
    fn quantities_are_told_from_other_texts() {
        for text in [
            "0", "1", "0.5", ".5", "5.", "+1", "-1", "500m", "2Gi", "1e3", "1E-3", "3E", "3Ei",
            "1k",
        ] {
            assert!(is_quantity(text), "{text}");
        }
        for text in [
            "", "-", ".", "1.2.3", "1GB", "1 Gi", "1K", "1ki", "1e", "1ei", "Gi", "1m5", "0x1",
            "1,5",
        ] {
            assert!(!is_quantity(text), "{text}");
        }
    }
}
