//! What podman's Go code makes of the output of a precreate hook.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use super::FilterFailure;
use crate::json::{Document, Kind, Member, Value, folds_to, write_string};

/// Returns the configuration that podman decodes from an output, with the fields that it would lose.
///
/// The text stays as it is unless another reader could take it for something else than Go does: then
/// keys have the case that the specification gives them, of keys that are there twice the values are
/// merged as Go does it, and each byte of invalid UTF-8 is U+FFFD.
pub fn decode(output: Vec<u8>) -> Result<Vec<u8>, FilterFailure> {
    let document = Document::parse(&output).map_err(FilterFailure::NotJson)?;
    if let Some(found) = is_no_object(document.root()) {
        return Err(FilterFailure::NotAnObject { found });
    }
    if let Some((value, expected)) = ROOT.mismatch(document.root()) {
        let found = match value.kind() {
            Kind::Number => String::from_utf8_lossy(value.raw()).chars().take(40).collect(),
            kind => kind.name().to_owned(),
        };
        let pointer = value.pointer();
        return Err(FilterFailure::WrongType { pointer, expected, found });
    }
    let mut writer = Writer { out: Vec::new(), differs: !has_plain_strings(&document) };
    writer.value(&[document.root()], &ROOT)?;
    let Writer { out, differs } = writer;
    Ok(if differs { out } else { output })
}

fn is_no_object(root: Value<'_>) -> Option<&'static str> {
    match root.kind() {
        Kind::Object | Kind::Null => None,
        Kind::Array => Some("an array"),
        Kind::String => Some("a string"),
        Kind::Bool => Some("a boolean"),
        Kind::Number => Some("a number"),
    }
}

/// Returns whether all strings are UTF-8, surrogates in pairs.
fn has_plain_strings(document: &Document<'_>) -> bool {
    let replaced = |text: Cow<'_, str>| text.contains(char::REPLACEMENT_CHARACTER);
    str::from_utf8(document.text()).is_ok()
        && !document.values().filter_map(Value::as_str).any(replaced)
}

/// Writes values as Go decodes them.
struct Writer {
    out: Vec<u8>,
    /// Whether that is something else than what stands in the text.
    differs: bool,
}

impl Writer {
    /// Writes what is left of values that are decoded into the same place, one after the other.
    fn value(&mut self, values: &[Value<'_>], kind: &Type) -> Result<(), FilterFailure> {
        let left = after_nulls(values, kind);
        let kind = match kind {
            Type::Pointer(inner) => inner,
            kind => kind,
        };
        let Some(last) = left.last() else {
            self.out.extend_from_slice(b"null");
            return Ok(());
        };
        match kind {
            Type::Struct(_) => self.object(&left, kind),
            Type::Map(inner) => self.map(&left, inner),
            Type::List(inner) => self.list(&left, inner),
            _ => {
                last.write_compact(&mut self.out);
                Ok(())
            }
        }
    }

    fn object(&mut self, values: &[Value<'_>], kind: &Type) -> Result<(), FilterFailure> {
        let fields = kind.fields();
        let mut same: Vec<Vec<Value<'_>>> = vec![Vec::new(); fields.len()];
        let members: Vec<(Member<'_>, Option<usize>)> =
            members(values).map(|member| (member, kind.field(&member))).collect();
        for (member, field) in &members {
            if let Some(at) = *field {
                self.differs |= !same[at].is_empty() || !member.is_named(fields[at].name);
                same[at].push(member.value);
            }
        }
        self.out.push(b'{');
        let mut is_first = true;
        for (member, field) in members {
            let Some(at) = field else {
                // Nobody knows what two of them mean.
                self.key(&mut is_first, &member.key.as_str().unwrap_or_default());
                member.value.write_compact(&mut self.out);
                continue;
            };
            let values = std::mem::take(&mut same[at]);
            if !values.is_empty() {
                self.key(&mut is_first, fields[at].name);
                self.value(&values, &fields[at].kind)?;
            }
        }
        self.out.push(b'}');
        Ok(())
    }

    fn map(&mut self, values: &[Value<'_>], inner: &Type) -> Result<(), FilterFailure> {
        let mut last = BTreeMap::new();
        for member in members(values) {
            let key = member.key.as_str().unwrap_or_default();
            self.differs |= last.insert(key, member.value).is_some();
        }
        self.out.push(b'{');
        let mut is_first = true;
        for (key, value) in last {
            self.key(&mut is_first, &key);
            self.value(&[value], inner)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn list(&mut self, values: &[Value<'_>], inner: &Type) -> Result<(), FilterFailure> {
        let [before @ .., last] = values else { return Ok(()) };
        // Go decodes the elements of the later array into those of the earlier one.
        let is_merged = |element: Value<'_>| element.is_null() || element.kind() == Kind::Object;
        if before.iter().any(|value| value.elements().next().is_some())
            && last.elements().any(is_merged)
        {
            return Err(FilterFailure::Duplicate { pointer: last.pointer() });
        }
        self.out.push(b'[');
        for (at, element) in last.elements().enumerate() {
            if at > 0 {
                self.out.push(b',');
            }
            self.value(&[element], inner)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn key(&mut self, is_first: &mut bool, key: &str) {
        if !std::mem::take(is_first) {
            self.out.push(b',');
        }
        write_string(key, &mut self.out);
        self.out.push(b':');
    }
}

fn members<'d>(values: &[Value<'d>]) -> impl Iterator<Item = Member<'d>> {
    values.iter().flat_map(|value| value.members())
}

/// Returns the values that Go does not forget for a `null`: it clears what can be empty, and leaves
/// alone what cannot.
fn after_nulls<'d>(values: &[Value<'d>], kind: &Type) -> Vec<Value<'d>> {
    let is_cleared = matches!(kind, Type::Pointer(_) | Type::List(_) | Type::Map(_) | Type::Any);
    let start = match values.iter().rposition(|value| value.is_null()) {
        Some(null) if is_cleared => null + 1,
        _ => 0,
    };
    values[start..].iter().filter(|value| !value.is_null()).copied().collect()
}

/// The struct that a configuration is, as podman's Go code decodes it.
///
/// `oci-spec`'s types differ from Go's: they require fields, reject `null` and negative numbers where
/// Go does not, know enumerations where Go has any string, and do not fold the case of keys.
const ROOT: Type = Type::Struct("Spec");

static STRUCTS: LazyLock<HashMap<&str, Vec<Field>>> =
    LazyLock::new(|| parse(include_str!("types.txt")));

/// A type of Go.
#[derive(Debug)]
enum Type {
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
struct Field {
    name: &'static str,
    kind: Type,
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
    fn fields(&self) -> &'static [Field] {
        match self {
            Type::Struct(name) => STRUCTS.get(name).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// Returns the number of the field that Go decodes a member of an object into.
    fn field(&self, member: &Member<'_>) -> Option<usize> {
        let key = member.key.as_str()?;
        self.fields().iter().position(|field| folds_to(&key, field.name))
    }

    /// Returns the first value, in document order, that Go does not decode into this type, and what
    /// it expects there.
    fn mismatch<'d>(&self, value: Value<'d>) -> Option<(Value<'d>, String)> {
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
