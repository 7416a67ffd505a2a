//! Checks of keys (unknown, misspelt, in the wrong case, repeated), of null values, and of strings
//! that are not valid Unicode.

use std::collections::HashMap;

use oci_hooks_files::spelling::closest_name;

use super::fields::{FileFields, ObjectKind};
use super::finding::FindingSink;
use super::{HookFinding, LintFix, Severity, rules};
use crate::hooks::OciStage;
use crate::json::{JsonDocument, JsonKind, JsonMember, JsonValue, TextLocation};

/// Checks all keys, strings and nulls.
pub fn check(document: &JsonDocument<'_>, fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    for &(object, place) in &fields.objects {
        check_known_keys(object, place, sink);
    }
    for value in document.values() {
        if sink.is_full() {
            return;
        }
        match value.kind() {
            JsonKind::Object => duplicates(value, sink),
            JsonKind::String if is_damaged(value) => {
                sink.report_at(
                    &rules::INVALID_TEXT,
                    value,
                    "the string is not valid Unicode: its invalid parts are read as U+FFFD",
                );
            }
            _ => {}
        }
    }
}

/// Compares the key of each member with the known fields.
fn check_known_keys(object: JsonValue<'_>, place: ObjectKind, sink: &mut FindingSink<'_>) {
    for member in object.members() {
        if sink.is_full() {
            return;
        }
        let key = member.key.as_str().unwrap_or_default();
        match place.field(&key) {
            Some(name) if key != name => {
                sink.report_at(
                    &rules::KEY_CASE,
                    member.key,
                    format!("`{key}` is read as `{name}`"),
                )
                .fix(fix_key(member, name));
                nulls(member, name, sink);
            }
            Some(name) => nulls(member, name, sink),
            None if is_remark(&key) => {}
            None => unknown(object, member, &key, place, sink),
        }
    }
}

/// Returns whether a key is a usual substitute for a comment, which JSON lacks.
fn is_remark(key: &str) -> bool {
    ["_", "$", "//", "#", "x-"].iter().any(|start| key.starts_with(start)) || key == "comment"
}

fn unknown(
    object: JsonValue<'_>,
    member: JsonMember<'_>,
    key: &str,
    place: ObjectKind,
    sink: &mut FindingSink<'_>,
) {
    let is_root = matches!(place, ObjectKind::Root | ObjectKind::OldRoot);
    let is_runtime = key.eq_ignore_ascii_case("hooks") || OciStage::from_name(key).is_some();
    if is_root && is_runtime && sink.has_finding(&rules::RUNTIME_HOOKS) {
        return;
    }
    let finding = sink.report_at(
        &rules::UNKNOWN_KEY,
        member.key,
        format!("unknown key `{key}`, which is ignored"),
    );
    if let Some(hint) = place_of(key, place) {
        finding.hint(hint);
    } else if let Some(name) = closest_name(key, place.names().iter().copied()) {
        finding.hint(format!("did you mean `{name}`?"));
        if is_free(object, member, name, place) {
            finding.fix(fix_key(member, name));
        }
    } else {
        let names: Vec<_> = place.names().iter().map(|name| format!("`{name}`")).collect();
        finding.hint(format!("known keys are {}", names.join(", ")));
    }
}

/// Returns the fix that replaces a key with `name`, which contains no characters to escape.
fn fix_key(member: JsonMember<'_>, name: &str) -> LintFix {
    LintFix::replace(format!("write `{name}`"), member.key.span(), format!("\"{name}\""))
}

/// Returns a hint for a key that belongs to another object or another schema.
fn place_of(key: &str, place: ObjectKind) -> Option<&'static str> {
    const COMMANDS: &str = "patterns for the command are in `when.commands`";
    const ARGS: &str = "the arguments of the program are in `hook.args`";
    let name = key.to_ascii_lowercase();
    Some(match (place, name.as_str()) {
        (ObjectKind::When, "args" | "arg" | "cmd" | "cmds" | "command" | "process") => COMMANDS,
        (ObjectKind::When, "annotation") => "patterns for annotations are in `when.annotations`",
        (ObjectKind::When | ObjectKind::Hook, "stages" | "stage") => {
            "move `stages` to the top level, next to `hook` and `when`"
        }
        (ObjectKind::When, "or" | "any") => {
            "`when` requires all of its conditions: write a separate hook file for each alternative"
        }
        (ObjectKind::When, "path" | "env" | "timeout") => "move it into `hook`",
        (ObjectKind::Hook, "arguments" | "argv") => ARGS,
        (ObjectKind::Hook, "environment" | "envs") => {
            "the environment of the program is in `hook.env`"
        }
        (ObjectKind::Hook, "cmd" | "command" | "program") => "the program is in `hook.path`",
        (ObjectKind::Hook, "always" | "annotations" | "commands" | "hasbindmounts") => {
            "conditions are in `when`"
        }
        (ObjectKind::Root, "cmd" | "cmds" | "command" | "commands") => COMMANDS,
        (ObjectKind::Root, "annotation" | "annotations") => {
            "patterns for annotations are in `when.annotations`"
        }
        (ObjectKind::Root, "hasbindmounts" | "always") => "conditions are in `when`",
        (ObjectKind::Root, "arguments" | "args") => ARGS,
        (ObjectKind::Root, "path" | "env" | "timeout") => "move it into `hook`",
        (ObjectKind::Root, "hooks") => "a hook file has one `hook`; `hooks` is for config.json",
        (ObjectKind::OldRoot, "when") => {
            "`when` is a key of version 1.0.0, but the file is read as 0.1.0, where `cmds`, `annotations` and \
             `hasbindmounts` are next to `hook`"
        }
        (ObjectKind::OldRoot, "env" | "timeout") => {
            "version 0.1.0 does not have this key; version 1.0.0 does"
        }
        _ => return None,
    })
}

/// Maximum number of members of an object in which a misspelt key gets a fix.
const MAX_MEMBERS: usize = 64;

/// Returns whether no other member sets the field `name`, correctly spelled or misspelt.
fn is_free(object: JsonValue<'_>, member: JsonMember<'_>, name: &str, place: ObjectKind) -> bool {
    // The older schema has two spellings of some fields, which exclude each other.
    let stem = |name: &str| name.trim_end_matches('s').to_owned();
    object.members().count() <= MAX_MEMBERS
        && object.members().filter(|other| other.key.span() != member.key.span()).all(|other| {
            let key = other.key.as_str().unwrap_or_default();
            let meant =
                place.field(&key).or_else(|| closest_name(&key, place.names().iter().copied()));
            meant.is_none_or(|meant| stem(meant) != stem(name))
        })
}

/// Reports null values of a field.
fn nulls(member: JsonMember<'_>, name: &str, sink: &mut FindingSink<'_>) {
    let value = member.value;
    if value.is_null() {
        let message = format!("null is read as if `{name}` were missing");
        sink.report_at(&rules::NULL_VALUE, value, message).severity(Severity::Note);
    }
    for element in value.elements().filter(|element| element.is_null()) {
        sink.report_at(&rules::NULL_VALUE, element, "null in a list is read as the empty string");
    }
    if name == "annotations" {
        for annotation in value.members().filter(|annotation| annotation.value.is_null()) {
            let message = "null is read as the empty pattern, which matches everything";
            sink.report_at(&rules::NULL_VALUE, annotation.value, message);
        }
    }
}

/// Reports keys that occur more than once.
fn duplicates(object: JsonValue<'_>, sink: &mut FindingSink<'_>) {
    let mut seen: HashMap<_, JsonValue<'_>> = HashMap::new();
    for member in object.members() {
        let key = member.key.as_str().unwrap_or_default();
        if let Some(first) = seen.get(&key) {
            let (path, text) = (sink.path, sink.text);
            let finding: &mut HookFinding =
                sink.report_at(&rules::DUPLICATE_KEY, member.key, format!("duplicate key `{key}`"));
            finding.hint(match member.value.kind() {
                JsonKind::Object => "engines merge the two objects field by field",
                _ => "only the last value is used",
            });
            let first = TextLocation {
                pointer: first.pointer(),
                ..TextLocation::of_span(text, first.span())
            };
            finding.add_related(path, Some(first), "first occurrence of the key");
            if sink.is_full() {
                return;
            }
        } else {
            seen.insert(key, member.key);
        }
    }
}

/// Returns whether decoding a string inserts a replacement character.
fn is_damaged(string: JsonValue<'_>) -> bool {
    let contains = |raw: &[u8], part: &[u8]| raw.windows(part.len()).any(|window| window == part);
    string.as_str().is_some_and(|text| text.contains('\u{fffd}'))
        && !contains(string.raw(), "\u{fffd}".as_bytes())
        && !contains(&string.raw().to_ascii_lowercase(), b"\\ufffd")
}
