//! What the schemas ask for: a version, values of the right types, fields that must be there, stages that are known.

use super::fields::{Fields, List};
use super::finding::Sink;
use super::fix::quote;
use super::keys::closest;
use super::{Fix, rules};
use crate::hooks::{HookError, OciStage, Version};
use crate::json::{Kind, Member, Value, folds_to};

/// Checks the version, the types and what is missing.
pub fn check(fields: &Fields<'_>, sink: &mut Sink<'_>) {
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
pub fn first(fields: &Fields<'_>) -> std::ops::Range<usize> {
    let span = fields.root.span();
    span.start..(span.start + 1).min(span.end)
}

/// Checks the stages and returns whether there are any.
pub fn check_stages(fields: &Fields<'_>, sink: &mut Sink<'_>) -> bool {
    let Some(list) = &fields.stages else { return true };
    let elements: Vec<_> = list.member.value.elements().collect();
    if elements.is_empty() {
        sink.at(&rules::NO_STAGES, list.member.value, "the hook is injected at no stage")
            .help("name at least one stage, such as \"createRuntime\"");
        return false;
    }
    let names = list.texts();
    for (&item, name) in list.items.iter().zip(&names) {
        if sink.is_full() {
            break;
        }
        known(item, name, sink);
    }
    repeated(list, &names, &elements, sink);
    prestart(list, &names, &elements, sink);
    if let Some(at) = names.iter().position(|name| name == OciStage::StartContainer.name()) {
        let message = "the program runs in the container and is looked up there";
        sink.at(&rules::PROGRAM_IN_CONTAINER, list.items[at], message).help(
            "the path must exist in the image and, for the engine to load the file, on the host",
        );
    }
    true
}

fn known(item: Value<'_>, name: &str, sink: &mut Sink<'_>) {
    let consumer = &sink.options.consumer;
    if OciStage::from_name(name).is_some() || consumer.extension_stages.contains(&name) {
        let others = sink.options.others.iter();
        let refusing: Vec<_> = others
            .filter(|other| {
                OciStage::from_name(name).is_none() && !other.extension_stages.contains(&name)
            })
            .map(|other| other.about)
            .collect();
        if !refusing.is_empty() {
            let message = format!("`{name}` is rejected by {}", refusing.join(", "));
            sink.at(&rules::STAGE_NOT_PORTABLE, item, message)
                .help("where they read the same directory, use another one for this file");
        }
        return;
    }
    let mut names = OciStage::ALL.map(OciStage::name).to_vec();
    names.extend(consumer.extension_stages);
    let plain: String = name.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).collect();
    let error = HookError::UnknownStage { stage: name.to_owned() };
    let finding = sink.at(&rules::UNKNOWN_STAGE, item, error.to_string());
    finding.help = error.hint();
    if let Some(meant) = closest(&plain, &names) {
        finding.help(format!("did you mean {meant:?}?")).fix(Fix::replace(
            format!("write {meant:?}"),
            item.span(),
            quote(meant),
        ));
    }
}

fn repeated(list: &List<'_>, names: &[String], elements: &[Value<'_>], sink: &mut Sink<'_>) {
    for (at, name) in names.iter().enumerate() {
        let is_unknown = OciStage::from_name(name).is_none()
            && !sink.options.consumer.extension_stages.contains(&name.as_str());
        if is_unknown || sink.is_full() || !names[..at].contains(name) {
            continue;
        }
        let item = list.items[at];
        sink.at(&rules::REPEATED_STAGE, item, format!("the hook runs twice at {name}"))
            .fix(remove(item, elements));
    }
}

fn prestart(list: &List<'_>, names: &[String], elements: &[Value<'_>], sink: &mut Sink<'_>) {
    let find = |stage: OciStage| names.iter().position(|name| name == stage.name());
    let Some(at) = find(OciStage::Prestart) else { return };
    let item = list.items[at];
    let is_moved = sink.options.consumer.prestart == OciStage::CreateRuntime;
    let name = sink.options.consumer.name;
    if find(OciStage::CreateRuntime).is_some() {
        let message = if is_moved {
            format!("the hook runs twice: {name} injects prestart at createRuntime too")
        } else {
            "the hook runs twice: at prestart and at createRuntime".to_owned()
        };
        let fix = is_moved.then(|| remove(item, elements)).flatten();
        sink.at(&rules::DOUBLED_PRESTART, item, message).help("keep createRuntime").fix(fix);
        return;
    }
    let message = if is_moved {
        format!("prestart is deprecated; {name} injects it at createRuntime")
    } else {
        "prestart is deprecated".to_owned()
    };
    let fix = Fix::replace("write \"createRuntime\"", item.span(), "\"createRuntime\"");
    sink.at(&rules::PRESTART_DEPRECATED, item, message)
        .help("write \"createRuntime\"")
        .fix(is_moved.then_some(fix));
}

/// Removes an element of a list together with a comma.
fn remove(item: Value<'_>, elements: &[Value<'_>]) -> Option<Fix> {
    let span = item.span();
    let at = elements.iter().position(|element| element.span() == span)?;
    let span = match (elements.get(at + 1), at.checked_sub(1).and_then(|at| elements.get(at))) {
        (Some(next), _) => span.start..next.span().start,
        (None, Some(last)) => last.span().end..span.end,
        (None, None) => span,
    };
    let name = String::from_utf8_lossy(item.raw());
    Some(Fix::remove(format!("remove {name}"), span))
}
