//! What the schemas ask for: a version, values of the right types, fields that must be there.

use super::fields::{Fields, ObjectKind};
use super::sink::Sink;
use super::source::quote;
use super::{Fix, rules};
use crate::hooks::{HookError, OciStage, Version};
use crate::json::{Kind, Member, Value, folds_to};

/// Checks the version, the types and what is missing.
pub(super) fn check(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    for &(value, expected) in &fields.mismatches {
        wrong_type(value, expected, sink);
    }
    if fields.root.kind() != Kind::Object {
        if fields.root.is_null() {
            missing(&rules::MISSING_HOOK, HookError::MissingHook, fields, sink);
        }
        return;
    }
    if runtime_hooks(fields, sink) {
        return;
    }
    version(fields, sink);
    for &(key, short, long) in &fields.both_set {
        let error = HookError::BothSet(short, long);
        sink.at(&rules::BOTH_SPELLINGS, key, error.to_string()).help = error.hint();
    }
    required(fields, sink);
}

fn wrong_type(value: Value<'_>, expected: &'static str, sink: &mut Sink<'_>) {
    let error = HookError::Type { expected, found: value.kind().name() };
    let fix = typed(value, expected).map(|text| {
        Fix::replace(format!("write {}", String::from_utf8_lossy(&text)), value.span(), text)
    });
    let finding = sink.at(&rules::WRONG_TYPE, value, error.to_string()).fix(fix);
    match (expected, value.kind()) {
        ("a boolean", Kind::String) => finding.help("true and false stand without quotes"),
        ("an integer", Kind::String) => finding.help("numbers stand without quotes"),
        ("an integer", Kind::Number) => finding.help("the timeout is in whole seconds"),
        ("an array of strings", Kind::String) => finding.help("put the string into brackets"),
        ("a string", Kind::Number | Kind::Bool) => finding.help("put it into quotes"),
        ("an object", Kind::String) => {
            finding.help("in version 1.0.0 `hook` is an object with the program in `path`")
        }
        _ => finding,
    };
}

/// Writes a value in the type that is expected, if there is no doubt how.
fn typed(value: Value<'_>, expected: &str) -> Option<Vec<u8>> {
    let text = value.as_str();
    match (expected, text.as_deref()) {
        ("a boolean", Some(word @ ("true" | "false"))) => Some(word.as_bytes().to_vec()),
        ("an integer", Some(digits)) => {
            let is_plain = digits.parse::<u32>().is_ok_and(|number| number.to_string() == digits);
            is_plain.then(|| digits.as_bytes().to_vec())
        }
        ("an integer", None) if value.kind() == Kind::Number => {
            let digits = std::str::from_utf8(value.raw()).ok()?.strip_suffix(".0")?;
            digits.parse::<u32>().is_ok().then(|| digits.as_bytes().to_vec())
        }
        ("an array of strings", Some(_)) => Some([b"[", value.raw(), b"]"].concat()),
        ("a string", None) if matches!(value.kind(), Kind::Number | Kind::Bool) => {
            Some([b"\"", value.raw(), b"\""].concat())
        }
        _ => None,
    }
}

/// Recognises the `hooks` object of a `config.json`, or what is in it.
fn runtime_hooks(fields: &Fields<'_>, sink: &mut Sink<'_>) -> bool {
    if fields.hook.is_some_and(|hook| !hook.value.is_null()) {
        return false;
    }
    let is_hooks = |member: &Member<'_>| {
        let key = member.key.as_str().unwrap_or_default();
        let holds_objects =
            |value: Value<'_>| value.elements().any(|element| element.kind() == Kind::Object);
        (key.eq_ignore_ascii_case("hooks")
            && matches!(member.value.kind(), Kind::Object | Kind::Array))
            || (OciStage::from_name(&key).is_some() && holds_objects(member.value))
    };
    let Some(member) = fields.root.members().find(is_hooks) else { return false };
    sink.at(
        &rules::RUNTIME_HOOKS,
        member.key,
        "this is the form of config.json, not of a hook file",
    )
    .help("name one program in `hook`: {\"path\": …}, and its stages in `stages`");
    true
}

fn version(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    let member = fields.version_member;
    let text = member.and_then(|member| member.value.as_str());
    let is_new = fields.version == Version::V1_0_0;
    match (text.as_deref(), member) {
        (Some("1.0.0"), _) => {}
        (Some("" | "0.1.0"), Some(member)) if is_new => {
            sink.at(
                &rules::MISSING_VERSION,
                member.value,
                "the file is written for version 1.0.0 and read as 0.1.0",
            )
            .help("write \"version\": \"1.0.0\"")
            .fix(Fix::replace("write 1.0.0", member.value.span(), "\"1.0.0\""));
        }
        (Some("" | "0.1.0"), _) | (None, None) if !is_new => {
            if fields.hook.is_some() {
                let at = member.map_or_else(|| first(fields), |member| member.value.span());
                sink.span(&rules::OLD_SCHEMA, at, "this is a file of the old version 0.1.0")
                    .help("`oci-hooks migrate` writes the same in 1.0.0");
            }
        }
        (Some(version), Some(member)) => {
            let error = HookError::UnknownVersion { version: version.to_owned() };
            let is_object = fields.hook.is_some_and(|hook| hook.value.kind() == Kind::Object);
            let fix = Fix::replace("write 1.0.0", member.value.span(), "\"1.0.0\"");
            let finding = sink.at(&rules::UNKNOWN_VERSION, member.value, error.to_string());
            finding.fix(is_object.then_some(fix)).help = error.hint();
        }
        (None, None) => {
            let fix = add_version(fields, sink.text);
            sink.span(
                &rules::MISSING_VERSION,
                first(fields),
                "without a version the file is read as 0.1.0, for which it is not written",
            )
            .help("add \"version\": \"1.0.0\"")
            .fix(fix);
        }
        // Of a wrong type, which is reported.
        (None, Some(_)) | (Some(_), None) => {}
    }
}

/// Adds the version as the first member, laid out like it.
fn add_version(fields: &Fields<'_>, text: &[u8]) -> Option<Fix> {
    let member = fields.root.members().find(|member| {
        folds_to(&member.key.as_str().unwrap_or_default(), "version") && member.value.is_null()
    });
    if let Some(member) = member {
        return Some(Fix::replace("write 1.0.0", member.value.span(), "\"1.0.0\""));
    }
    let first = fields.root.members().next()?.key.span().start;
    let mut added = b"\"version\": \"1.0.0\",".to_vec();
    let space = &text[fields.root.span().start + 1..first];
    let is_space = !space.is_empty() && space.iter().all(u8::is_ascii_whitespace);
    added.extend_from_slice(if is_space { space } else { b" " });
    Some(Fix::replace("add the version", first..first, added))
}

/// Reports required fields that are not there.
fn required(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    let path = fields.path.and_then(Value::as_str);
    let is_old = fields.version == Version::V0_1_0;
    // A field of the wrong type is there.
    let is_wrong = |place: Option<Value<'_>>| {
        place.is_some_and(|place| {
            let span = place.span();
            let inside = |v: &Value<'_>| span.start <= v.span().start && v.span().end <= span.end;
            fields.mismatches.iter().any(|(value, _)| inside(value))
        })
    };
    let hook = fields.hook.map(|hook| hook.value);
    let path_is_wrong = match (is_old, hook) {
        (true, hook) => is_wrong(hook),
        (false, None) => false,
        (false, Some(hook)) if hook.kind() == Kind::Object => is_wrong(member(hook, "path")),
        (false, hook) => is_wrong(hook),
    };
    match path.as_deref() {
        _ if path_is_wrong => {}
        None if is_old => missing(&rules::MISSING_HOOK, HookError::MissingHook, fields, sink),
        None | Some("") => {
            let error = HookError::MissingPath;
            let at = fields.path.or(hook);
            match at {
                Some(at) => {
                    sink.at(&rules::MISSING_PATH, at, error.to_string()).help = error.hint();
                }
                None => missing(&rules::MISSING_PATH, error, fields, sink),
            }
        }
        Some(_) => {}
    }
    let stages = member(fields.root, "stages").or_else(|| member(fields.root, "stage"));
    if fields.stages.is_none() && !is_wrong(stages) {
        missing(&rules::MISSING_STAGES, HookError::MissingStages, fields, sink);
    }
}

fn missing(rule: &'static super::Rule, error: HookError, fields: &Fields<'_>, sink: &mut Sink<'_>) {
    sink.span(rule, first(fields), error.to_string()).help = error.hint();
}

/// Returns the value of the last member that Go takes for a field.
fn member<'d>(object: Value<'d>, name: &str) -> Option<Value<'d>> {
    let is_it = |member: &Member<'d>| folds_to(&member.key.as_str().unwrap_or_default(), name);
    object.members().filter(is_it).last().map(|member| member.value)
}

/// Returns the opening brace, to point at for what is missing.
pub(super) fn first(fields: &Fields<'_>) -> std::ops::Range<usize> {
    let span = fields.root.span();
    span.start..(span.start + 1).min(span.end)
}

/// Returns where a key belongs that stands in the wrong object or is another schema's.
pub(super) fn place_of(key: &str, place: ObjectKind) -> Option<&'static str> {
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

/// Quotes a word for a fix.
pub(super) fn quoted(word: &str) -> Vec<u8> {
    quote(word).into_bytes()
}
