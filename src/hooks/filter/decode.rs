//! What podman's Go code makes of the output of a precreate hook.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::FilterFailure;
use super::types::{ROOT, Type};
use crate::json::{Document, Kind, Member, Value, write_string};

/// Returns the configuration that podman decodes from an output, with the fields that it would lose.
///
/// The text stays as it is unless another reader could take it for something else than Go does: then
/// keys have the case that the specification gives them, of keys that are there twice the values are
/// merged as Go does it, and each byte of invalid UTF-8 is U+FFFD.
pub(super) fn decode(output: Vec<u8>) -> Result<Vec<u8>, FilterFailure> {
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
