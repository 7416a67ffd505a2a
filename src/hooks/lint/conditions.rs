//! Conditions: those that never hold, and those that say less than they seem to.

use super::fields::Fields;
use super::sink::Sink;
use super::{Severity, keys, rules, schema};
use crate::hooks::Version;
use crate::json::Kind;

/// Checks the conditions and returns whether they can hold.
pub(super) fn check(fields: &Fields<'_>, sink: &mut Sink<'_>) -> bool {
    let is_new = fields.version == Version::V1_0_0;
    let always = fields.always.and_then(|member| member.value.as_bool());
    let mounts = fields.has_bind_mounts.and_then(|member| member.value.as_bool());

    if always == Some(false)
        && !fields.is_mask()
        && let Some(member) = fields.always
    {
        sink.at(
            &rules::ALWAYS_FALSE,
            member.value,
            "the hook never runs: all conditions must hold",
        )
        .help("remove `always` if the other conditions are meant");
    }
    if mounts == Some(false) {
        bind_mounts_false(fields, is_new, sink);
    }
    let blocked = is_new && (always == Some(false) || mounts == Some(false));
    if blocked
        && let Some(commands) = fields.commands.as_ref().filter(|list| !list.items.is_empty())
    {
        let key = commands.member.key;
        sink.at(
            &rules::UNREACHABLE_COMMANDS,
            key,
            "this is never looked at: a condition before it never holds",
        );
    }
    if always == Some(true) {
        redundant_always(fields, sink);
    }

    let conditions = fields.conditions();
    // What is of a wrong type was meant to be a condition.
    let in_when = |value: &crate::json::Value<'_>| {
        fields.when.is_some_and(|when| {
            let (outer, inner) = (when.value.span(), value.span());
            outer.start <= inner.start && inner.end <= outer.end
        })
    };
    let broken = fields.mismatches.iter().any(|(value, _)| in_when(value));
    let holds = if is_new {
        !conditions.is_empty()
    } else {
        conditions.len() > usize::from(mounts == Some(false))
    };
    if !holds && !broken {
        let place = keys::conditions_place(fields.version);
        match fields.when.filter(|when| when.value.kind() != Kind::Null) {
            Some(when) => sink.at(
                &rules::NO_CONDITION,
                when.key,
                "the hook never runs: `when` has no condition",
            ),
            None => sink.span(
                &rules::NO_CONDITION,
                schema::first(fields),
                format!("the hook never runs: there is no condition in {place}"),
            ),
        }
        .help(if is_new {
            "for all containers, write \"when\": {\"always\": true}"
        } else {
            "for all containers, write version 1.0.0 with \"when\": {\"always\": true}"
        });
    }
    (holds || broken) && !blocked
}

fn bind_mounts_false(fields: &Fields<'_>, is_new: bool, sink: &mut Sink<'_>) {
    let Some(member) = fields.has_bind_mounts else { return };
    let (message, help) = if is_new {
        (
            "the hook never runs: this does not ask for containers without bind mounts",
            "there is no way to ask for them; leave it out",
        )
    } else {
        ("this has no effect", "leave it out")
    };
    sink.at(&rules::BIND_MOUNTS_FALSE, member.value, message).help(help);
}

fn redundant_always(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    let Some(always) = fields.always else { return };
    let conditions = fields.conditions();
    if conditions.len() < 2 {
        return;
    }
    let commands = fields.commands.as_ref().map(|list| list.texts()).unwrap_or_default();
    let only_commands = conditions.len() == 2 && !commands.is_empty();
    let (severity, message) = if only_commands && commands.iter().any(|p| matches_everything(p)) {
        (Severity::Note, "`commands` is too much: it matches every program")
    } else {
        (Severity::Warning, "this adds nothing: the other conditions still must hold")
    };
    sink.at(&rules::REDUNDANT_ALWAYS, always.key, message)
        .severity(severity)
        .help("remove `always`, or the other conditions if the hook is for all containers");
}

/// Returns whether a pattern is one of the usual ways to match anything.
pub(super) fn matches_everything(pattern: &str) -> bool {
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let inner = inner.strip_suffix('$').unwrap_or(inner);
    matches!(inner, "" | ".*" | "(.*)") && pattern != "^$"
}
