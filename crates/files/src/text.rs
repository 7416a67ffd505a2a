//! Serialization of values as strings, for `#[serde(with)]`.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

/// Serializes a value as a string.
pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// Parses a value from a string.
pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}
