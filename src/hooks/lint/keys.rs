//! Keys: unknown, in the wrong case, twice; and values that say nothing.

use std::collections::HashMap;

use super::fields::{Fields, ObjectKind};
use super::sink::Sink;
use super::spelling::closest;
use super::{Finding, Fix, Severity, rules, schema};
use crate::hooks::{OciStage, Version};
use crate::json::{Document, Kind, Location, Member, Value};

/// Checks all keys, and strings and nulls.
pub(super) fn check(document: &Document<'_>, fields: &Fields<'_>, sink: &mut Sink<'_>) {
    for &(object, place) in &fields.objects {
        known(object, place, sink);
    }
    for value in document.values() {
        if sink.is_full() {
            return;
        }
        match value.kind() {
            Kind::Object => duplicates(value, sink),
            Kind::String if is_damaged(value) => {
                sink.at(
                    &rules::INVALID_TEXT,
                    value,
                    "this is not valid Unicode, and is read with \u{fffd} in it",
                );
            }
            _ => {}
        }
    }
}

/// Looks for the name of each member among those that are read.
fn known(object: Value<'_>, place: ObjectKind, sink: &mut Sink<'_>) {
    for member in object.members() {
        if sink.is_full() {
            return;
        }
        let key = member.key.as_str().unwrap_or_default();
        match place.field(&key) {
            Some(name) if key != name => {
                let fix = Fix::replace(
                    format!("write `{name}`"),
                    member.key.span(),
                    schema::quoted(name),
                );
                sink.at(&rules::KEY_CASE, member.key, format!("`{key}` is read as `{name}`"))
                    .fix(fix);
                nulls(member, name, sink);
            }
            Some(name) => nulls(member, name, sink),
            None if is_remark(&key) => {}
            None => unknown(object, member, &key, place, sink),
        }
    }
}

/// Returns whether a key is a usual way to write a remark where there are no comments.
fn is_remark(key: &str) -> bool {
    ["_", "$", "//", "#", "x-"].iter().any(|start| key.starts_with(start)) || key == "comment"
}

fn unknown(
    object: Value<'_>,
    member: Member<'_>,
    key: &str,
    place: ObjectKind,
    sink: &mut Sink<'_>,
) {
    let is_root = matches!(place, ObjectKind::Root | ObjectKind::OldRoot);
    let is_runtime = key.eq_ignore_ascii_case("hooks") || OciStage::from_name(key).is_some();
    if is_root && is_runtime && sink.found(&rules::RUNTIME_HOOKS) {
        return;
    }
    let finding =
        sink.at(&rules::UNKNOWN_KEY, member.key, format!("`{key}` is not read by anyone"));
    if let Some(help) = schema::place_of(key, place) {
        finding.help(help);
    } else if let Some(name) = closest(key, place.names()) {
        finding.help(format!("did you mean `{name}`?"));
        if is_free(object, member, name, place) {
            finding.fix(Fix::replace(
                format!("write `{name}`"),
                member.key.span(),
                schema::quoted(name),
            ));
        }
    } else {
        let names: Vec<_> = place.names().iter().map(|name| format!("`{name}`")).collect();
        finding.help(format!("known keys are {}", names.join(", ")));
    }
}

/// Members of an object among which it is clear what is meant by a misspelled one.
const MAX_MEMBERS: usize = 64;

/// Returns whether no other member is read as a field, or may be meant to be.
fn is_free(object: Value<'_>, member: Member<'_>, name: &str, place: ObjectKind) -> bool {
    // The older schema has two spellings of some fields, which do not go together.
    let stem = |name: &str| name.trim_end_matches('s').to_owned();
    object.members().count() <= MAX_MEMBERS
        && object.members().filter(|other| other.key.span() != member.key.span()).all(|other| {
            let key = other.key.as_str().unwrap_or_default();
            let meant = place.field(&key).or_else(|| closest(&key, place.names()));
            meant.is_none_or(|meant| stem(meant) != stem(name))
        })
}

/// Looks for null in a field.
fn nulls(member: Member<'_>, name: &str, sink: &mut Sink<'_>) {
    let value = member.value;
    if value.is_null() {
        let message = format!("null leaves `{name}` as if it were not there");
        sink.at(&rules::NULL_VALUE, value, message).severity(Severity::Note);
    }
    for element in value.elements().filter(|element| element.is_null()) {
        sink.at(&rules::NULL_VALUE, element, "null in a list is read as the empty string");
    }
    if name == "annotations" {
        for annotation in value.members().filter(|annotation| annotation.value.is_null()) {
            let message = "null is read as the empty pattern, which matches everything";
            sink.at(&rules::NULL_VALUE, annotation.value, message);
        }
    }
}

/// Reports keys that occur more than once.
fn duplicates(object: Value<'_>, sink: &mut Sink<'_>) {
    let mut seen: HashMap<_, Value<'_>> = HashMap::new();
    for member in object.members() {
        let key = member.key.as_str().unwrap_or_default();
        if let Some(first) = seen.get(&key) {
            let (path, text) = (sink.path, sink.text);
            let finding: &mut Finding =
                sink.at(&rules::DUPLICATE_KEY, member.key, format!("`{key}` is here twice"));
            finding.help(match member.value.kind() {
                Kind::Object => "objects are merged: what both say counts",
                _ => "the last one counts",
            });
            let first =
                Location { pointer: first.pointer(), ..Location::of_span(text, first.span()) };
            finding.related(path, Some(first), "it is here first");
            if sink.is_full() {
                return;
            }
        } else {
            seen.insert(key, member.key);
        }
    }
}

/// Returns whether reading a string puts a replacement character into it.
fn is_damaged(string: Value<'_>) -> bool {
    let contains = |raw: &[u8], part: &[u8]| raw.windows(part.len()).any(|window| window == part);
    string.as_str().is_some_and(|text| text.contains('\u{fffd}'))
        && !contains(string.raw(), "\u{fffd}".as_bytes())
        && !contains(&string.raw().to_ascii_lowercase(), b"\\ufffd")
}

/// Returns which object a file's conditions stand in, for messages.
pub(super) fn conditions_place(version: Version) -> &'static str {
    match version {
        Version::V0_1_0 => "`cmds`, `annotations` or `hasbindmounts`",
        Version::V1_0_0 => "`when`",
    }
}
