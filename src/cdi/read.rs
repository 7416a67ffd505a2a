//! Reading the text of a CDI specification, which is YAML or JSON.
//!
//! As in the CDI Go package, unknown keys are rejected, null means absent, and numbers and booleans
//! are accepted where text is expected: `name: 0` is common. Unlike in that package, keys are
//! case-sensitive.

use oci_hooks_files::fs::{PathError, ReadError};
use oci_hooks_yaml::{
    TextPosition, YamlDialect, YamlDocuments, YamlError, YamlField, YamlNode, YamlValue, hint,
};
use serde::de::value::StrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use super::spec::{CdiSpec, ValueFault};

/// Errors of a specification.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CdiSpecError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The directory cannot be listed.
    #[error(transparent)]
    List(#[from] PathError),
    #[error("the file is not UTF-8")]
    NotText,
    #[error("the file is empty")]
    Empty,
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// A value is invalid or missing, or a key is unknown.
    #[error("{message}")]
    Value {
        /// JSON pointer of the value or key.
        pointer: String,
        position: Option<TextPosition>,
        message: String,
    },
}

impl CdiSpecError {
    /// Returns line and column of the error; `None` if it has no position in the text.
    pub fn position(&self) -> Option<TextPosition> {
        match self {
            CdiSpecError::Yaml(error) => error.position,
            CdiSpecError::Value { position, .. } => *position,
            _ => None,
        }
    }
}

impl CdiSpec {
    /// Reads a specification, in YAML or JSON. Only the first document of the text counts, as in Go.
    pub fn parse(text: &[u8]) -> Result<Self, CdiSpecError> {
        parse(text)
    }
}

fn parse(text: &[u8]) -> Result<CdiSpec, CdiSpecError> {
    let text = std::str::from_utf8(text).map_err(|_| CdiSpecError::NotText)?;
    let document = YamlDocuments::new(text, YamlDialect::Go).next();
    let root = document.ok_or(CdiSpecError::Empty)??.root.with_origins(|source| source.position);
    if root.is_null() {
        return Err(CdiSpecError::Empty);
    }
    let located = |fault: ValueFault| {
        let pointer = fault.pointer;
        // A missing key has no position: its nearest parent that exists is used.
        let parents =
            std::iter::successors(Some(pointer.as_str()), |at| Some(at.rsplit_once('/')?.0));
        let position = parents.filter_map(|at| root.pointer(at)).next().map(|it| it.origin);
        CdiSpecError::Value { position, message: fault.message, pointer }
    };
    let spec = CdiSpec::deserialize(NodeReader(&root)).map_err(|error| located(error.into()))?;
    spec.check().map_err(located)?;
    Ok(spec)
}

/// A value of the wrong type, or an unknown key. Each enclosing list or mapping adds a segment to
/// the path.
#[derive(Debug)]
struct TypeMismatch {
    /// Segments of the path, the innermost first.
    path: Vec<String>,
    message: String,
}

impl TypeMismatch {
    fn with_segment(mut self, segment: &str) -> Self {
        self.path.push(segment.replace('~', "~0").replace('/', "~1"));
        self
    }
}

impl From<TypeMismatch> for ValueFault {
    fn from(error: TypeMismatch) -> Self {
        let pointer = error.path.iter().rev().flat_map(|segment| ["/", segment]).collect();
        ValueFault { pointer, message: error.message }
    }
}

impl std::fmt::Display for TypeMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TypeMismatch {}

impl serde::de::Error for TypeMismatch {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        TypeMismatch { path: Vec::new(), message: message.to_string() }
    }
}

struct NodeReader<'n>(&'n YamlNode<TextPosition>);

impl<'de> Deserializer<'de> for NodeReader<'de> {
    type Error = TypeMismatch;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        match &self.0.value {
            YamlValue::Null => visitor.visit_unit(),
            YamlValue::Bool(flag) => visitor.visit_bool(*flag),
            YamlValue::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => visitor.visit_i64(number),
                (None, Some(number)) => visitor.visit_u64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            YamlValue::Text(text) => visitor.visit_borrowed_str(text),
            YamlValue::List(items) => visitor.visit_seq(ListReader { items, index: 0 }),
            YamlValue::Map(fields) => visitor.visit_map(MapReader { fields, value: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        match &self.0.value {
            YamlValue::Null => visitor.visit_str(""),
            YamlValue::Bool(flag) => visitor.visit_string(flag.to_string()),
            YamlValue::Number(number) => visitor.visit_string(number.to_string()),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        self.deserialize_string(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        if self.0.is_null() { visitor.visit_bool(false) } else { self.deserialize_any(visitor) }
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        if self.0.is_null() { visitor.visit_i64(0) } else { self.deserialize_any(visitor) }
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        self.deserialize_i64(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        if self.0.is_null() {
            return visitor.visit_seq(ListReader { items: &[], index: 0 });
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeMismatch> {
        if self.0.is_null() {
            return visitor.visit_map(MapReader { fields: &[], value: None });
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeMismatch> {
        let is_unknown = |field: &&YamlField<TextPosition>| !known.contains(&field.name.as_str());
        if let Some(field) = self.0.fields().iter().find(is_unknown) {
            let help = hint(&field.name, known).unwrap_or_else(|| "remove it".to_owned());
            let message = format!("unknown key {:?}: {help}", field.name);
            return Err(TypeMismatch { path: Vec::new(), message }.with_segment(&field.name));
        }
        self.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u64 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct enum identifier ignored_any
    }
}

/// Reads the elements of a list.
struct ListReader<'n> {
    items: &'n [YamlNode<TextPosition>],
    index: usize,
}

impl<'de> SeqAccess<'de> for ListReader<'de> {
    type Error = TypeMismatch;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, TypeMismatch> {
        let Some(node) = self.items.get(self.index) else { return Ok(None) };
        let index = self.index.to_string();
        self.index += 1;
        seed.deserialize(NodeReader(node)).map(Some).map_err(|error| error.with_segment(&index))
    }
}

/// Reads the fields of a mapping.
struct MapReader<'n> {
    fields: &'n [YamlField<TextPosition>],
    value: Option<&'n YamlField<TextPosition>>,
}

impl<'de> MapAccess<'de> for MapReader<'de> {
    type Error = TypeMismatch;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, TypeMismatch> {
        let Some((field, rest)) = self.fields.split_first() else { return Ok(None) };
        self.fields = rest;
        self.value = Some(field);
        let name: StrDeserializer<'_, TypeMismatch> = field.name.as_str().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, TypeMismatch> {
        let field = self.value.take().expect("serde asks for a key first");
        seed.deserialize(NodeReader(&field.node)).map_err(|error| error.with_segment(&field.name))
    }
}
