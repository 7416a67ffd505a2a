//! Keys: unknown, misspelt, in the wrong case, twice; and values that say nothing.

use std::collections::HashMap;

use super::fields::{Fields, ObjectKind};
use super::finding::Sink;
use super::fix::quote;
use super::{Finding, Fix, Severity, rules};
use crate::hooks::OciStage;
use crate::json::{Document, Kind, Location, Member, Value};

/// Checks all keys, and strings and nulls.
pub fn check(document: &Document<'_>, fields: &Fields<'_>, sink: &mut Sink<'_>) {
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
                let fix = Fix::replace(format!("write `{name}`"), member.key.span(), quote(name));
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
    if let Some(help) = place_of(key, place) {
        finding.help(help);
    } else if let Some(name) = closest(key, place.names()) {
        finding.help(format!("did you mean `{name}`?"));
        if is_free(object, member, name, place) {
            finding.fix(Fix::replace(format!("write `{name}`"), member.key.span(), quote(name)));
        }
    } else {
        let names: Vec<_> = place.names().iter().map(|name| format!("`{name}`")).collect();
        finding.help(format!("known keys are {}", names.join(", ")));
    }
}

/// Returns where a key belongs that stands in the wrong object or is another schema's.
fn place_of(key: &str, place: ObjectKind) -> Option<&'static str> {
    const COMMANDS: &str = "patterns for the command are in `when.commands`";
    const ARGS: &str = "the arguments of the program are in `hook.args`";
    let name = key.to_ascii_lowercase();
    Some(match (place, name.as_str()) {
        (ObjectKind::When, "args" | "arg" | "cmd" | "cmds" | "command" | "process") => COMMANDS,
        (ObjectKind::When, "annotation") => "patterns for annotations are in `when.annotations`",
        (ObjectKind::When | ObjectKind::Hook, "stages" | "stage") => {
            "`stages` belongs beside `hook` and `when`"
        }
        (ObjectKind::When, "or" | "any") => "there are no alternatives: write one file for each",
        (ObjectKind::When, "path" | "env" | "timeout") => "it belongs into `hook`",
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
        (ObjectKind::Root, "path" | "env" | "timeout") => "it belongs into `hook`",
        (ObjectKind::Root, "hooks") => "a hook file has one `hook`; `hooks` is for config.json",
        (ObjectKind::OldRoot, "when") => {
            "`when` is of version 1.0.0, and this is read as 0.1.0: `cmds`, `annotations` and \
             `hasbindmounts` stand beside `hook` there"
        }
        (ObjectKind::OldRoot, "env" | "timeout") => "version 0.1.0 cannot set it; 1.0.0 can",
        _ => return None,
    })
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

/// Longest word that is compared; no name is close to a longer one.
const MAX_LENGTH: usize = 32;

/// Finds the name that a word is most likely a misspelling of.
pub fn closest(word: &str, names: &[&'static str]) -> Option<&'static str> {
    let candidates = names.iter().filter_map(|name| {
        let limit = (name.len() / 3).clamp(1, 2);
        let distance = distance(&word.to_lowercase(), &name.to_lowercase())?;
        (distance <= limit).then_some((distance, *name))
    });
    candidates.min().map(|(_, name)| name)
}

/// Counts the letters to insert, delete, replace or swap with a neighbour to get from one word to the
/// other; none for long words.
fn distance(a: &str, b: &str) -> Option<usize> {
    let (a, b): (Vec<_>, Vec<_>) = (a.chars().collect(), b.chars().collect());
    if a.len() > MAX_LENGTH || b.len() > MAX_LENGTH {
        return None;
    }
    // Three rows of the usual table: the one before the last is for swaps.
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_at(&before, j - 2) + 1);
            }
            row.push(best);
        }
        before = last;
        last = row;
    }
    last.last().copied()
}

fn before_at(row: &[usize], at: usize) -> usize {
    row.get(at).copied().unwrap_or(usize::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspellings_are_recognised() {
        let names = ["path", "args", "env", "timeout"];
        for (word, meant) in [
            ("pth", Some("path")),
            ("agrs", Some("args")),
            ("Timout", Some("timeout")),
            ("evn", Some("env")),
            ("command", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(closest(word, &names), meant, "{word}");
        }
        assert_eq!(closest(&"path".repeat(100), &names), None);
    }

    #[test]
    fn distance_counts_swaps_once() {
        assert_eq!(distance("prestart", "perstart"), Some(1));
        assert_eq!(distance("stage", "stages"), Some(1));
        assert_eq!(distance("", "abc"), Some(3));
    }
}
