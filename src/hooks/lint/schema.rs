//! Checks of the schemas: the version, types of values, required fields, known stages.

use oci_hooks_files::spelling::closest_name;

use super::fields::{FileFields, StringList};
use super::finding::FindingSink;
use super::{LintFix, rules};
use crate::hooks::{HookError, OciStage, SchemaVersion};
use crate::json::{JsonKind, JsonMember, JsonValue, folds_to};

/// Checks the version, the types and the required fields.
pub fn check(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    for &(value, expected) in &fields.mismatches {
        report_wrong_type(value, expected, fields, sink);
    }
    if fields.root.kind() != JsonKind::Object {
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
        sink.report_at(&rules::BOTH_SPELLINGS, key, error.to_string()).hint = error.hint();
    }
    check_required(fields, sink);
}

fn report_wrong_type(
    value: JsonValue<'_>,
    expected: &'static str,
    fields: &FileFields<'_>,
    sink: &mut FindingSink<'_>,
) {
    let error = HookError::Type { expected, found: value.kind().name() };
    let fix = convert_to_type(value, expected, fields).map(|text| {
        LintFix::replace(format!("write {}", String::from_utf8_lossy(&text)), value.span(), text)
    });
    let is_hook = fields.hook.is_some_and(|hook| hook.value.span() == value.span());
    let finding = sink.report_at(&rules::WRONG_TYPE, value, error.to_string()).fix(fix);
    match (expected, value.kind()) {
        ("a boolean", JsonKind::String) => finding.hint("write true and false without quotes"),
        ("an integer", JsonKind::String) => finding.hint("write numbers without quotes"),
        ("an integer", JsonKind::Number) => finding.hint("write the timeout in whole seconds"),
        ("an array of strings", JsonKind::String) => finding.hint("put the string into brackets"),
        ("a string", JsonKind::Number | JsonKind::Bool) => finding.hint("put it into quotes"),
        ("an object", JsonKind::String) if is_hook => {
            finding.hint("in version 1.0.0 `hook` is an object with the program in `path`")
        }
        _ => finding,
    };
}

/// Converts a value to the expected type, if the result is unambiguous.
fn convert_to_type(
    value: JsonValue<'_>,
    expected: &str,
    fields: &FileFields<'_>,
) -> Option<Vec<u8>> {
    let text = value.as_str();
    match (expected, text.as_deref()) {
        ("a boolean", Some(word @ ("true" | "false"))) => Some(word.as_bytes().to_vec()),
        ("an integer", Some(digits)) => {
            let is_plain = digits.parse::<u32>().is_ok_and(|number| number.to_string() == digits);
            is_plain.then(|| digits.as_bytes().to_vec())
        }
        ("an integer", None) if value.kind() == JsonKind::Number => {
            let digits = std::str::from_utf8(value.raw()).ok()?.strip_suffix(".0")?;
            digits.parse::<u32>().is_ok().then(|| digits.as_bytes().to_vec())
        }
        ("an array of strings", Some(_)) => Some([b"[", value.raw(), b"]"].concat()),
        ("a string", None) if value.location().pointer == "/version" => {
            let version = fields.form.unwrap_or(SchemaVersion::V1_0_0).name();
            matches!(value.raw(), b"1" | b"1.0").then(|| format!("\"{version}\"").into_bytes())
        }
        ("a string", None) if matches!(value.kind(), JsonKind::Number | JsonKind::Bool) => {
            Some([b"\"", value.raw(), b"\""].concat())
        }
        _ => None,
    }
}

/// Reports a file in the form of a `config.json`: with `hooks`, or with a list of hooks for a
/// stage. Returns whether the file was reported.
fn runtime_hooks(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) -> bool {
    // Go keeps the path of an earlier `hook` if the last one is null.
    if fields.path.is_some() || fields.hook.is_some_and(|hook| !hook.value.is_null()) {
        return false;
    }
    let is_hooks = |member: &JsonMember<'_>| {
        let key = member.key.as_str().unwrap_or_default();
        let holds_objects = |value: JsonValue<'_>| {
            value.elements().any(|element| element.kind() == JsonKind::Object)
        };
        (key.eq_ignore_ascii_case("hooks")
            && matches!(member.value.kind(), JsonKind::Object | JsonKind::Array))
            || (OciStage::from_name(&key).is_some() && holds_objects(member.value))
    };
    let Some(member) = fields.root.members().find(is_hooks) else { return false };
    sink.report_at(
        &rules::RUNTIME_HOOKS,
        member.key,
        "this key belongs in a container's config.json, not in a hook file",
    )
    .hint("name one program in `hook`: {\"path\": …}, and its stages in `stages`");
    true
}

fn version(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    let member = fields.version_member;
    let text = member.and_then(|member| member.value.as_str());
    let is_new = fields.version == SchemaVersion::V1_0_0;
    match (text.as_deref(), member) {
        (Some("1.0.0"), _) => {}
        (Some("" | "0.1.0"), Some(member)) if is_new => {
            sink.report_at(
                &rules::MISSING_VERSION,
                member.value,
                "the file has the form of version 1.0.0, but is read as 0.1.0",
            )
            .hint("write \"version\": \"1.0.0\"")
            .fix(LintFix::replace("write 1.0.0", member.value.span(), "\"1.0.0\""));
        }
        (Some("" | "0.1.0"), _) | (None, None) if !is_new => {
            if fields.hook.is_some() {
                let at = member.map_or_else(|| opening_brace(fields), |member| member.value.span());
                sink.span(&rules::OLD_SCHEMA, at, "this is a file of the old version 0.1.0")
                    .hint("`oci-hooks migrate` converts the file to version 1.0.0");
            }
        }
        (Some(version), Some(member)) => {
            let meant = fields.form.unwrap_or(SchemaVersion::V1_0_0);
            let error = HookError::UnknownVersion { version: version.to_owned(), meant };
            let fix = fields.form.map(SchemaVersion::name).map(|name| {
                LintFix::replace(
                    format!("write {name}"),
                    member.value.span(),
                    format!("\"{name}\""),
                )
            });
            sink.report_at(&rules::UNKNOWN_VERSION, member.value, error.to_string())
                .hint(format!("write \"version\": {:?}", meant.name()))
                .fix(fix);
        }
        (None, None) => {
            let fix = add_version(fields, sink.text);
            sink.span(
                &rules::MISSING_VERSION,
                opening_brace(fields),
                "without `version`, the file is read as 0.1.0, but it has the form of 1.0.0",
            )
            .hint("add \"version\": \"1.0.0\"")
            .fix(fix);
        }
        // Another finding reports the wrong type.
        (None, Some(_)) | (Some(_), None) => {}
    }
}

/// Returns a fix that adds `version` before the first member, with the same whitespace, or that
/// replaces a null version. `None` if the object is empty.
fn add_version(fields: &FileFields<'_>, text: &[u8]) -> Option<LintFix> {
    let member = fields.root.members().find(|member| {
        folds_to(&member.key.as_str().unwrap_or_default(), "version") && member.value.is_null()
    });
    if let Some(member) = member {
        return Some(LintFix::replace("write 1.0.0", member.value.span(), "\"1.0.0\""));
    }
    let first = fields.root.members().next()?.key.span().start;
    let mut added = b"\"version\": \"1.0.0\",".to_vec();
    let space = &text[fields.root.span().start + 1..first];
    let is_space = !space.is_empty() && space.iter().all(u8::is_ascii_whitespace);
    added.extend_from_slice(if is_space { space } else { b" " });
    Some(LintFix::replace("add the version", first..first, added))
}

fn check_required(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    let path = fields.path.and_then(JsonValue::as_str);
    let is_old = fields.version == SchemaVersion::V0_1_0;
    // A field of the wrong type is not missing.
    let is_wrong = |place: Option<JsonValue<'_>>| {
        place.is_some_and(|place| fields.mismatches_in(place).next().is_some())
    };
    let hook = fields.hook.map(|hook| hook.value);
    let path_is_wrong = match (is_old, hook) {
        (true, hook) => is_wrong(hook),
        (false, None) => false,
        (false, Some(hook)) if hook.kind() == JsonKind::Object => is_wrong(member(hook, "path")),
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
                    sink.report_at(&rules::MISSING_PATH, at, error.to_string()).hint = error.hint();
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

fn missing(
    rule: &'static super::LintRule,
    error: HookError,
    fields: &FileFields<'_>,
    sink: &mut FindingSink<'_>,
) {
    sink.span(rule, opening_brace(fields), error.to_string()).hint = error.hint();
}

/// Returns the value of the last member that Go decodes into a field.
fn member<'d>(object: JsonValue<'d>, name: &str) -> Option<JsonValue<'d>> {
    let is_it = |member: &JsonMember<'d>| folds_to(&member.key.as_str().unwrap_or_default(), name);
    object.members().filter(is_it).last().map(|member| member.value)
}

/// Returns the position of the opening brace, for findings about missing fields.
pub fn opening_brace(fields: &FileFields<'_>) -> std::ops::Range<usize> {
    let span = fields.root.span();
    span.start..(span.start + 1).min(span.end)
}

/// Checks the stages, and returns `false` if their list is empty, so that the hook never runs.
pub fn check_stages(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) -> bool {
    let Some(list) = &fields.stages else { return true };
    let elements: Vec<_> = list.member.value.elements().collect();
    if elements.is_empty() {
        sink.report_at(&rules::NO_STAGES, list.member.value, "the hook is injected at no stage")
            .hint("name at least one stage, such as \"createRuntime\"");
        return false;
    }
    let names = list.texts();
    for (&item, name) in list.items.iter().zip(&names) {
        if sink.is_full() {
            break;
        }
        check_known_name(item, name, sink);
    }
    check_repeated(list, &names, &elements, sink);
    prestart(list, &names, &elements, sink);
    if let Some(at) = names.iter().position(|name| name == OciStage::StartContainer.name()) {
        let message = "the program runs in the container and is looked up there";
        sink.report_at(&rules::PROGRAM_IN_CONTAINER, list.items[at], message).hint(
            "the path must exist in the image and, for the engine to load the file, on the host",
        );
    }
    true
}

fn check_known_name(item: JsonValue<'_>, name: &str, sink: &mut FindingSink<'_>) {
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
            sink.report_at(&rules::STAGE_NOT_PORTABLE, item, message)
                .hint("if they read this directory too, move the file into another directory");
        }
        return;
    }
    let mut names = OciStage::ALL.map(OciStage::name).to_vec();
    names.extend(consumer.extension_stages);
    let plain: String = name.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).collect();
    let error = HookError::UnknownStage { stage: name.to_owned() };
    let finding = sink.report_at(&rules::UNKNOWN_STAGE, item, error.to_string());
    finding.hint = error.hint();
    if let Some(meant) = closest_name(&plain, names.iter().copied()) {
        finding.hint(format!("did you mean {meant:?}?")).fix(LintFix::replace(
            format!("write {meant:?}"),
            item.span(),
            format!("\"{meant}\""),
        ));
    }
}

fn check_repeated(
    list: &StringList<'_>,
    names: &[String],
    elements: &[JsonValue<'_>],
    sink: &mut FindingSink<'_>,
) {
    for (at, name) in names.iter().enumerate() {
        let is_unknown = OciStage::from_name(name).is_none()
            && !sink.options.consumer.extension_stages.contains(&name.as_str());
        if is_unknown || sink.is_full() || !names[..at].contains(name) {
            continue;
        }
        let item = list.items[at];
        sink.report_at(&rules::REPEATED_STAGE, item, format!("the hook runs twice at {name}"))
            .fix(remove(item, elements));
    }
}

fn prestart(
    list: &StringList<'_>,
    names: &[String],
    elements: &[JsonValue<'_>],
    sink: &mut FindingSink<'_>,
) {
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
        sink.report_at(&rules::DOUBLED_PRESTART, item, message).hint("remove prestart").fix(fix);
        return;
    }
    let message = if is_moved {
        format!("prestart is deprecated; {name} injects it at createRuntime")
    } else {
        "prestart is deprecated".to_owned()
    };
    let fix = LintFix::replace("write \"createRuntime\"", item.span(), "\"createRuntime\"");
    sink.report_at(&rules::PRESTART_DEPRECATED, item, message)
        .hint("write \"createRuntime\"")
        .fix(is_moved.then_some(fix));
}

/// Returns a fix that removes an element of a list together with a comma.
fn remove(item: JsonValue<'_>, elements: &[JsonValue<'_>]) -> Option<LintFix> {
    let span = item.span();
    let at = elements.iter().position(|element| element.span() == span)?;
    let span = match (elements.get(at + 1), at.checked_sub(1).and_then(|at| elements.get(at))) {
        (Some(next), _) => span.start..next.span().start,
        (None, Some(last)) => last.span().end..span.end,
        (None, None) => span,
    };
    let name = String::from_utf8_lossy(item.raw());
    Some(LintFix::remove(format!("remove {name}"), span))
}
