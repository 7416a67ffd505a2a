//! The table against the types of Kubernetes' API: a new version of those brings no field that
//! nobody thought of.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::*;

#[test]
fn every_field_of_kubernetes_is_in_the_table() {
    let mut missing = Vec::new();
    let mut seen = BTreeSet::new();
    let mut left = vec![String::new()];
    while let Some(parent) = left.pop() {
        for name in fields_at(&parent) {
            let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
            match Field::find(&path) {
                None => missing.push(path),
                Some(field) => {
                    seen.insert(field.path);
                    if Field::has_fields(&path) {
                        left.push(path);
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "not in the table: {missing:#?}");
    let unknown: Vec<_> = FIELDS.iter().filter(|field| !seen.contains(field.path)).collect();
    assert!(unknown.is_empty(), "not in Kubernetes: {unknown:#?}");
}

#[test]
fn the_table_has_each_field_once() {
    let paths: BTreeSet<_> = FIELDS.iter().map(|field| field.path).collect();
    assert_eq!(paths.len(), FIELDS.len());
}

/// Returns the names of the fields that a pod has at a path: those that the type there asks for.
fn fields_at(path: &str) -> Vec<&'static str> {
    let names = RefCell::new(Vec::new());
    let path: Vec<&str> = path.split('.').filter(|name| !name.is_empty()).collect();
    // It fails where the path ends, having seen what there is to see.
    let _ = Pod::deserialize(Tracer { path: &path, names: &names });
    names.into_inner()
}

/// Gives a type only the fields on a path, and notes the names of those that the last one has.
#[derive(Clone, Copy)]
struct Tracer<'a> {
    path: &'a [&'a str],
    names: &'a RefCell<Vec<&'static str>>,
}

fn end() -> Error {
    serde::de::Error::custom("the end of the path")
}

impl<'de> Deserializer<'de> for Tracer<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.path.is_empty() {
            self.names.borrow_mut().extend(fields);
            return Err(end());
        }
        visitor.visit_map(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(end())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Tracer<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let name: &str = self.path[0];
        seed.deserialize(StrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        self.path = &self.path[1..];
        seed.deserialize(*self)
    }
}

impl<'de> SeqAccess<'de> for Tracer<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        seed.deserialize(*self).map(Some)
    }
}

impl fmt::Debug for Tracer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.path).finish()
    }
}
