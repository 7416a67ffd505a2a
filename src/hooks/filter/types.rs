//! The types of the runtime specification, as podman's Go code decodes them.
//!
//! `oci-spec`'s types differ from Go's: they require fields, reject `null` and negative numbers where
//! Go does not, know enumerations where Go has any string, and do not fold the case of keys.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::json::{Kind, Member, Value, folds_to};

/// The struct that a configuration is.
pub(super) const ROOT: Type = Type::Struct("Spec");

static STRUCTS: LazyLock<HashMap<&str, Vec<Field>>> =
    LazyLock::new(|| parse(include_str!("types.txt")));

/// A type of Go.
#[derive(Debug)]
pub(super) enum Type {
    String,
    Bool,
    /// An integer with its least and greatest value.
    Integer(i128, i128),
    Any,
    Pointer(Box<Type>),
    List(Box<Type>),
    /// An object with any keys.
    Map(Box<Type>),
    Struct(&'static str),
}

/// A field of a struct.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Type,
}

impl Type {
    fn parse(text: &'static str) -> Self {
        let inner = |text| Box::new(Type::parse(text));
        if let Some(text) = text.strip_prefix('*') {
            return Type::Pointer(inner(text));
        }
        if let Some(text) = text.strip_prefix("[]") {
            return Type::List(inner(text));
        }
        if let Some(text) = text.strip_prefix("{}") {
            return Type::Map(inner(text));
        }
        match text {
            "string" => Type::String,
            "bool" => Type::Bool,
            "any" => Type::Any,
            "int32" => Type::Integer(i32::MIN.into(), i32::MAX.into()),
            "int" | "int64" => Type::Integer(i64::MIN.into(), i64::MAX.into()),
            "uint16" => Type::Integer(0, u16::MAX.into()),
            "uint32" => Type::Integer(0, u32::MAX.into()),
            "uint" | "uint64" => Type::Integer(0, u64::MAX.into()),
            name => Type::Struct(name),
        }
    }

    /// Returns the fields of a struct; none of another type.
    pub(super) fn fields(&self) -> &'static [Field] {
        match self {
            Type::Struct(name) => STRUCTS.get(name).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// Returns the number of the field that Go decodes a member of an object into.
    pub(super) fn field(&self, member: &Member<'_>) -> Option<usize> {
        let key = member.key.as_str()?;
        self.fields().iter().position(|field| folds_to(&key, field.name))
    }

    /// Returns the first value, in document order, that Go does not decode into this type, and what
    /// it expects there.
    pub(super) fn mismatch<'d>(&self, value: Value<'d>) -> Option<(Value<'d>, String)> {
        let wrong = |expected: &str| Some((value, expected.to_owned()));
        match (self, value.kind()) {
            // Which leaves a field as it is.
            (_, Kind::Null) | (Type::String, Kind::String) | (Type::Bool, Kind::Bool) => None,
            (Type::Pointer(inner), _) => inner.mismatch(value),
            (Type::List(inner), Kind::Array) => {
                value.elements().find_map(|element| inner.mismatch(element))
            }
            (Type::Map(inner), Kind::Object) => {
                value.members().find_map(|member| inner.mismatch(member.value))
            }
            (Type::Struct(_), Kind::Object) => {
                let fields = self.fields();
                value.members().find_map(|it| fields[self.field(&it)?].kind.mismatch(it.value))
            }
            (&Type::Integer(least, greatest), Kind::Number) => {
                let text = str::from_utf8(value.raw()).unwrap_or_default();
                // Go's unsigned integers have no sign, even of zero.
                let is_signed = least == 0 && text.starts_with('-');
                let fits = text.parse().is_ok_and(|n: i128| least <= n && n <= greatest);
                if fits && !is_signed {
                    return None;
                }
                Some((value, format!("an integer from {least} to {greatest}")))
            }
            // To Go a number of any kind is one with 64 bits.
            (Type::Any, _) => value
                .inside()
                .find(|value| {
                    let text = str::from_utf8(value.raw()).unwrap_or_default();
                    value.kind() == Kind::Number && text.parse().is_ok_and(f64::is_infinite)
                })
                .map(|value| (value, "a number that 64 bits can hold".to_owned())),
            (Type::String, _) => wrong("a string"),
            (Type::Bool, _) => wrong("a boolean"),
            (Type::Integer(..), _) => wrong("an integer"),
            (Type::List(_), _) => wrong("an array"),
            (Type::Map(_) | Type::Struct(_), _) => wrong("an object"),
        }
    }
}

fn parse(text: &'static str) -> HashMap<&'static str, Vec<Field>> {
    let mut structs: HashMap<_, Vec<Field>> = HashMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.trim_start().split_once(' ') {
            Some((name, kind)) => {
                let field = Field { name, kind: Type::parse(kind) };
                structs.entry(current).or_default().push(field);
            }
            None => current = line,
        }
    }
    structs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(kind: &Type) -> Option<&'static str> {
        match kind {
            Type::Pointer(inner) | Type::List(inner) | Type::Map(inner) => named(inner),
            Type::Struct(name) => Some(name),
            _ => None,
        }
    }

    #[test]
    fn each_struct_is_there_and_used() {
        let all: Vec<_> =
            STRUCTS.values().flatten().filter_map(|field| named(&field.kind)).collect();
        assert!(all.len() > 60, "{}", all.len());
        for name in &all {
            assert!(STRUCTS.contains_key(name), "{name}");
        }
        for name in STRUCTS.keys().filter(|name| **name != "Spec") {
            assert!(all.contains(name), "{name}");
        }
    }
}
