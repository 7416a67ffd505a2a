//! Decoding the output of a precreate hook as podman's Go code does.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use super::FilterFailure;
use crate::json::{JsonDocument, JsonKind, JsonMember, JsonValue, folds_to, write_string};

/// Decodes an output as podman does, but keeps the fields that podman would lose.
///
/// The text is unchanged unless another reader could read it differently from Go: then keys get the
/// case of the specification, values of repeated keys are merged as by Go, and each byte of invalid
/// UTF-8 becomes U+FFFD.
pub fn decode(output: Vec<u8>) -> Result<Vec<u8>, FilterFailure> {
    let document = JsonDocument::parse(&output).map_err(FilterFailure::NotJson)?;
    if let Some(found) = is_no_object(document.root()) {
        return Err(FilterFailure::NotAnObject { found });
    }
    if let Some((value, expected)) = ROOT.mismatch(document.root()) {
        let found = match value.kind() {
            JsonKind::Number => String::from_utf8_lossy(value.raw()).chars().take(40).collect(),
            kind => kind.name().to_owned(),
        };
        let pointer = value.pointer();
        return Err(FilterFailure::WrongType { pointer, expected, found });
    }
    let mut writer = GoWriter { out: Vec::new(), differs: !has_plain_strings(&document) };
    writer.value(&[document.root()], &ROOT)?;
    let GoWriter { out, differs } = writer;
    Ok(if differs { out } else { output })
}

fn is_no_object(root: JsonValue<'_>) -> Option<&'static str> {
    match root.kind() {
        JsonKind::Object | JsonKind::Null => None,
        JsonKind::Array => Some("an array"),
        JsonKind::String => Some("a string"),
        JsonKind::Bool => Some("a boolean"),
        JsonKind::Number => Some("a number"),
    }
}

/// Returns whether all strings are valid UTF-8, with surrogates in pairs.
fn has_plain_strings(document: &JsonDocument<'_>) -> bool {
    let replaced = |text: Cow<'_, str>| text.contains(char::REPLACEMENT_CHARACTER);
    str::from_utf8(document.text()).is_ok()
        && !document.values().filter_map(JsonValue::as_str).any(replaced)
}

/// Writes values as Go decodes them.
struct GoWriter {
    out: Vec<u8>,
    /// If set, `out` means something else than the source text to some readers.
    differs: bool,
}

impl GoWriter {
    /// Writes the result of decoding several values into the same place, one after the other.
    fn value(&mut self, values: &[JsonValue<'_>], kind: &GoType) -> Result<(), FilterFailure> {
        let left = apply_nulls(values, kind);
        let kind = match kind {
            GoType::Pointer(inner) => inner,
            kind => kind,
        };
        let Some(last) = left.last() else {
            self.out.extend_from_slice(b"null");
            return Ok(());
        };
        match kind {
            GoType::Struct(_) => self.object(&left, kind),
            GoType::Map(inner) => self.map(&left, inner),
            GoType::List(inner) => self.list(&left, inner),
            _ => {
                last.write_compact(&mut self.out);
                Ok(())
            }
        }
    }

    fn object(&mut self, values: &[JsonValue<'_>], kind: &GoType) -> Result<(), FilterFailure> {
        let fields = kind.fields();
        let mut same: Vec<Vec<JsonValue<'_>>> = vec![Vec::new(); fields.len()];
        let members: Vec<(JsonMember<'_>, Option<usize>)> =
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
                // The meaning of repeated unknown keys is unknown, so all are kept.
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

    fn map(&mut self, values: &[JsonValue<'_>], inner: &GoType) -> Result<(), FilterFailure> {
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

    fn list(&mut self, values: &[JsonValue<'_>], inner: &GoType) -> Result<(), FilterFailure> {
        let [before @ .., last] = values else { return Ok(()) };
        // Go decodes the elements of the later array into those of the earlier one.
        let is_merged =
            |element: JsonValue<'_>| element.is_null() || element.kind() == JsonKind::Object;
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

fn members<'d>(values: &[JsonValue<'d>]) -> impl Iterator<Item = JsonMember<'d>> {
    values.iter().flat_map(|value| value.members())
}

/// Returns the values that Go keeps: a `null` clears types that can be empty, and leaves the others
/// unchanged.
fn apply_nulls<'d>(values: &[JsonValue<'d>], kind: &GoType) -> Vec<JsonValue<'d>> {
    let is_cleared =
        matches!(kind, GoType::Pointer(_) | GoType::List(_) | GoType::Map(_) | GoType::Any);
    let start = match values.iter().rposition(|value| value.is_null()) {
        Some(null) if is_cleared => null + 1,
        _ => 0,
    };
    values[start..].iter().filter(|value| !value.is_null()).copied().collect()
}

/// The Go struct that podman decodes a configuration into.
///
/// `oci-spec`'s types differ from Go's: they require fields, reject `null` and negative numbers where
/// Go does not, know enumerations where Go has any string, and do not fold the case of keys.
const ROOT: GoType = GoType::Struct("Spec");

static STRUCTS: LazyLock<HashMap<&str, Vec<GoField>>> =
    LazyLock::new(|| parse(include_str!("types.txt")));

#[derive(Debug)]
enum GoType {
    String,
    Bool,
    /// An integer with its minimum and maximum.
    Integer(i128, i128),
    Any,
    Pointer(Box<GoType>),
    List(Box<GoType>),
    /// An object with any keys.
    Map(Box<GoType>),
    Struct(&'static str),
}

/// A field of a struct.
#[derive(Debug)]
struct GoField {
    name: &'static str,
    kind: GoType,
}

impl GoType {
    fn parse(text: &'static str) -> Self {
        let inner = |text| Box::new(GoType::parse(text));
        if let Some(text) = text.strip_prefix('*') {
            return GoType::Pointer(inner(text));
        }
        if let Some(text) = text.strip_prefix("[]") {
            return GoType::List(inner(text));
        }
        if let Some(text) = text.strip_prefix("{}") {
            return GoType::Map(inner(text));
        }
        match text {
            "string" => GoType::String,
            "bool" => GoType::Bool,
            "any" => GoType::Any,
            "int32" => GoType::Integer(i32::MIN.into(), i32::MAX.into()),
            "int" | "int64" => GoType::Integer(i64::MIN.into(), i64::MAX.into()),
            "uint16" => GoType::Integer(0, u16::MAX.into()),
            "uint32" => GoType::Integer(0, u32::MAX.into()),
            "uint" | "uint64" => GoType::Integer(0, u64::MAX.into()),
            name => GoType::Struct(name),
        }
    }

    /// Returns the fields of a struct; empty for other types.
    fn fields(&self) -> &'static [GoField] {
        match self {
            GoType::Struct(name) => STRUCTS.get(name).map_or(&[], Vec::as_slice),
            _ => &[],
        }
    }

    /// Returns the index of the field that Go decodes a member of an object into.
    fn field(&self, member: &JsonMember<'_>) -> Option<usize> {
        let key = member.key.as_str()?;
        self.fields().iter().position(|field| folds_to(&key, field.name))
    }

    /// Returns the first value, in document order, that Go cannot decode into this type, and the
    /// expected type.
    fn mismatch<'d>(&self, value: JsonValue<'d>) -> Option<(JsonValue<'d>, String)> {
        let wrong = |expected: &str| Some((value, expected.to_owned()));
        match (self, value.kind()) {
            // `null` leaves a field unchanged.
            (_, JsonKind::Null)
            | (GoType::String, JsonKind::String)
            | (GoType::Bool, JsonKind::Bool) => None,
            (GoType::Pointer(inner), _) => inner.mismatch(value),
            (GoType::List(inner), JsonKind::Array) => {
                value.elements().find_map(|element| inner.mismatch(element))
            }
            (GoType::Map(inner), JsonKind::Object) => {
                value.members().find_map(|member| inner.mismatch(member.value))
            }
            (GoType::Struct(_), JsonKind::Object) => {
                let fields = self.fields();
                value.members().find_map(|it| fields[self.field(&it)?].kind.mismatch(it.value))
            }
            (&GoType::Integer(least, greatest), JsonKind::Number) => {
                let text = str::from_utf8(value.raw()).unwrap_or_default();
                // Go's unsigned integers have no sign, even of zero.
                let is_signed = least == 0 && text.starts_with('-');
                let fits = text.parse().is_ok_and(|n: i128| least <= n && n <= greatest);
                if fits && !is_signed {
                    return None;
                }
                Some((value, format!("an integer from {least} to {greatest}")))
            }
            // Go decodes numbers of type `any` as float64.
            (GoType::Any, _) => value
                .inside()
                .find(|value| {
                    let text = str::from_utf8(value.raw()).unwrap_or_default();
                    value.kind() == JsonKind::Number && text.parse().is_ok_and(f64::is_infinite)
                })
                .map(|value| (value, "a number that 64 bits can hold".to_owned())),
            (GoType::String, _) => wrong("a string"),
            (GoType::Bool, _) => wrong("a boolean"),
            (GoType::Integer(..), _) => wrong("an integer"),
            (GoType::List(_), _) => wrong("an array"),
            (GoType::Map(_) | GoType::Struct(_), _) => wrong("an object"),
        }
    }
}

fn parse(text: &'static str) -> HashMap<&'static str, Vec<GoField>> {
    let mut structs: HashMap<_, Vec<GoField>> = HashMap::new();
    let mut current = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.trim_start().split_once(' ') {
            Some((name, kind)) => {
                let field = GoField { name, kind: GoType::parse(kind) };
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

    fn kind_name(kind: &GoType) -> Option<&'static str> {
        match kind {
            GoType::Pointer(inner) | GoType::List(inner) | GoType::Map(inner) => kind_name(inner),
            GoType::Struct(name) => Some(name),
            _ => None,
        }
    }

    #[test]
    fn every_go_struct_is_defined_and_used() {
        let all: Vec<_> =
            STRUCTS.values().flatten().filter_map(|field| kind_name(&field.kind)).collect();
        assert!(all.len() > 60, "{}", all.len());
        for name in &all {
            assert!(STRUCTS.contains_key(name), "{name}");
        }
        for name in STRUCTS.keys().filter(|name| **name != "Spec") {
            assert!(all.contains(name), "{name}");
        }
    }
}
