//! Stages.

use super::fields::{Fields, List};
use super::sink::Sink;
use super::spelling::closest;
use super::{Fix, rules, schema};
use crate::hooks::{HookError, OciStage};
use crate::json::Value;

/// Checks the stages and returns whether there are any.
pub(super) fn check(fields: &Fields<'_>, sink: &mut Sink<'_>) -> bool {
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
            schema::quoted(meant),
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
