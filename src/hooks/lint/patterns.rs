//! Checks of conditions that never hold or are redundant, and of patterns.

use std::ops::Range;

use super::fields::{FileFields, StringList};
use super::finding::FindingSink;
use super::fix::source_span;
use super::{LintFix, Severity, rules, schema};
use crate::hooks::pattern::syntax::{self, Ast, ConstructKind};
use crate::hooks::{PatternError, PatternPlace, SchemaVersion};
use crate::json::{JsonKind, JsonValue};

/// Checks the conditions and returns whether they can hold.
pub fn check_conditions(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) -> bool {
    let is_new = fields.version == SchemaVersion::V1_0_0;
    let always = fields.always.and_then(|member| member.value.as_bool());
    let mounts = fields.has_bind_mounts.and_then(|member| member.value.as_bool());

    if always == Some(false)
        && !fields.is_mask()
        && let Some(member) = fields.always
    {
        sink.report_at(
            &rules::ALWAYS_FALSE,
            member.value,
            "the hook never runs: `always: false` never holds, and all conditions must hold",
        )
        .hint("remove `always` if the other conditions are meant");
    }
    if mounts == Some(false) {
        check_bind_mounts_false(fields, is_new, sink);
    }
    let blocked = is_new && (always == Some(false) || mounts == Some(false));
    if blocked
        && let Some(commands) = fields.commands.as_ref().filter(|list| !list.items.is_empty())
    {
        let key = commands.member.key;
        sink.report_at(
            &rules::UNREACHABLE_COMMANDS,
            key,
            "`commands` is never evaluated, because another condition never holds",
        );
    }
    if always == Some(true) {
        check_redundant_always(fields, sink);
    }

    let conditions = fields.conditions();
    // A value of the wrong type was meant to be a condition.
    let broken = fields.when.is_some_and(|when| fields.mismatches_in(when.value).next().is_some());
    let holds = if is_new {
        !conditions.is_empty()
    } else {
        conditions.len() > usize::from(mounts == Some(false))
    };
    if !holds && !broken {
        let place = conditions_place(fields.version);
        match fields.when.filter(|when| when.value.kind() != JsonKind::Null) {
            Some(when) => sink.report_at(
                &rules::NO_CONDITION,
                when.key,
                "the hook never runs: `when` has no condition",
            ),
            None => sink.span(
                &rules::NO_CONDITION,
                schema::opening_brace(fields),
                format!("the hook never runs: there is no condition in {place}"),
            ),
        }
        .hint(if is_new {
            "for all containers, write \"when\": {\"always\": true}"
        } else {
            "for all containers, write version 1.0.0 with \"when\": {\"always\": true}"
        });
    }
    (holds || broken) && !blocked
}

/// Returns the fields that hold the conditions of a schema, for messages.
fn conditions_place(version: SchemaVersion) -> &'static str {
    match version {
        SchemaVersion::V0_1_0 => "`cmds`, `annotations` or `hasbindmounts`",
        SchemaVersion::V1_0_0 => "`when`",
    }
}

fn check_bind_mounts_false(fields: &FileFields<'_>, is_new: bool, sink: &mut FindingSink<'_>) {
    let Some(member) = fields.has_bind_mounts else { return };
    let (message, hint) = if is_new {
        (
            "the hook never runs: `hasBindMounts: false` never holds, not even for containers without bind mounts",
            "remove it: no condition selects containers without bind mounts",
        )
    } else {
        ("`hasbindmounts: false` has no effect", "remove it")
    };
    sink.report_at(&rules::BIND_MOUNTS_FALSE, member.value, message).hint(hint);
}

fn check_redundant_always(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    let Some(always) = fields.always else { return };
    let conditions = fields.conditions();
    if conditions.len() < 2 {
        return;
    }
    let commands = fields.commands.as_ref().map(|list| list.texts()).unwrap_or_default();
    let only_commands = conditions.len() == 2 && !commands.is_empty();
    let (severity, message) = if only_commands && commands.iter().any(|p| matches_everything(p)) {
        (Severity::Note, "`commands` is redundant: it matches every program")
    } else {
        (Severity::Warning, "`always: true` has no effect: the other conditions still must hold")
    };
    sink.report_at(&rules::REDUNDANT_ALWAYS, always.key, message)
        .severity(severity)
        .hint("remove `always`, or the other conditions if the hook is for all containers");
}

/// Returns whether a pattern is a usual way to match everything.
fn matches_everything(pattern: &str) -> bool {
    let inner = pattern.strip_prefix('^').unwrap_or(pattern);
    let inner = inner.strip_suffix('$').unwrap_or(inner);
    matches!(inner, "" | ".*" | "(.*)") && pattern != "^$"
}

/// Maximum length of patterns for style checks; patterns written by hand are shorter.
const MAX_STYLE_BYTES: usize = 4096;

/// Checks all patterns of a hook file.
pub fn check_patterns(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    for annotation in &fields.annotations {
        check_pattern(annotation.key, PatternPlace::AnnotationKey, sink);
        check_pattern(annotation.value, PatternPlace::AnnotationValue, sink);
    }
    for &command in fields.commands.iter().flat_map(|list| &list.items) {
        check_pattern(command, PatternPlace::Command, sink);
    }
    if let Some(list) = &fields.annotation_list {
        check_joined(list, sink);
    }
}

/// A valid pattern: its position, text and syntax tree.
struct ParsedPattern<'d> {
    value: JsonValue<'d>,
    text: String,
    ast: Ast,
    place: PatternPlace,
}

fn check_pattern(value: JsonValue<'_>, place: PatternPlace, sink: &mut FindingSink<'_>) {
    // `keys::check` reports null.
    let Some(text) = value.as_str() else { return };
    if sink.is_full() {
        return;
    }
    match syntax::parse(&text) {
        Ok(ast) => style(&ParsedPattern { value, text: text.into_owned(), ast, place }, sink),
        Err(error) => invalid(value, place, &error, sink),
    }
}

fn invalid(
    value: JsonValue<'_>,
    place: PatternPlace,
    error: &PatternError,
    sink: &mut FindingSink<'_>,
) {
    let span = source_span(value, error.span());
    let span = if span.is_empty() { value.span() } else { span };
    sink.report_within(
        &rules::INVALID_PATTERN,
        value,
        span,
        format!("invalid {place} pattern: {error}"),
    )
    .hint = error.hint().map(str::to_owned);
}

/// Checks the annotation patterns of 0.1.0, which are joined before they are compiled.
fn check_joined(list: &StringList<'_>, sink: &mut FindingSink<'_>) {
    let texts = list.texts();
    if texts.is_empty() && list.member.value.elements().next().is_none() {
        sink.report_at(
            &rules::EMPTY_PATTERN,
            list.member.value,
            "an empty list matches every container that has an annotation",
        );
    }
    let whole = syntax::parse(&texts.join("|"));
    for (at, (&value, text)) in list.items.iter().zip(&texts).enumerate() {
        if sink.is_full() {
            return;
        }
        match (syntax::parse(text), &whole) {
            (Ok(ast), Ok(_)) => {
                let is_last = at + 1 == texts.len();
                if !is_last && affects_later_patterns(text, &ast) {
                    let message = "the pattern changes the meaning of those after it, because all are joined with |";
                    sink.report_at(&rules::JOINED_PATTERNS, value, message)
                        .hint("put flags into a group, as in (?i:…), and end \\Q with \\E");
                }
                let place = PatternPlace::AnnotationValue;
                style(&ParsedPattern { value, text: text.clone(), ast, place }, sink);
            }
            (Err(_), Ok(_)) => {
                let message = "the pattern is invalid by itself; it is valid only when joined with the others by |";
                sink.report_at(&rules::JOINED_PATTERNS, value, message)
                    .hint("make each pattern valid by itself");
            }
            (Err(error), Err(_)) => invalid(value, PatternPlace::AnnotationValue, &error, sink),
            // Another pattern is invalid.
            (Ok(_), Err(_)) => {}
        }
    }
}

/// Returns whether a pattern changes the patterns joined after it.
fn affects_later_patterns(text: &str, ast: &Ast) -> bool {
    ast.constructs().iter().any(|construct| match construct.kind {
        ConstructKind::Flags => {
            text.get(construct.span.clone()).is_some_and(|flags| flags.ends_with(')'))
        }
        ConstructKind::Quotation => !text[construct.span.start..].contains("\\E"),
        _ => false,
    })
}

/// Checks the style of a valid pattern.
fn style(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let ParsedPattern { value, text, ast, place } = pattern;
    if text.len() > MAX_STYLE_BYTES {
        return;
    }
    if text.is_empty() {
        sink.report_at(&rules::EMPTY_PATTERN, *value, "an empty pattern matches everything")
            .hint("write .* for any text, ^$ for the empty text");
        return;
    }
    if ast.matches_nothing() {
        let rule = match place {
            PatternPlace::Command => &rules::UNREACHABLE_COMMANDS,
            _ => &rules::UNMATCHABLE_PATTERN,
        };
        sink.report_at(rule, *value, "this pattern matches no text at all")
            .hint("^ and $ are the ends of the text; write \\^ and \\$ for the characters");
        return;
    }
    if *place == PatternPlace::Command
        && let Some(at) = text.find(' ')
    {
        let span = source_span(*value, at..at + 1);
        sink.report_within(
            &rules::COMMAND_LINE_PATTERN,
            *value,
            span,
            "the pattern has a space, but only args[0] is matched, not the arguments after it",
        )
        .hint("remove the arguments from the pattern");
    }
    check_value_in_key(pattern, sink);
    check_command_name(pattern, sink);
    control_characters(pattern, sink);
    check_double_escapes(pattern, sink);
    dots(pattern, sink);
    check_constructs(pattern, sink);
    glob(pattern, sink);
    anchors(pattern, sink);
}

fn check_value_in_key(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let Some(at) = pattern.text.find('=') else { return };
    // Other alternatives may match.
    if pattern.place != PatternPlace::AnnotationKey || pattern.text.contains(['|', '[', '?', '*']) {
        return;
    }
    let span = source_span(pattern.value, at..at + 1);
    sink.report_within(
        &rules::VALUE_IN_KEY,
        pattern.value,
        span,
        "the pattern never matches: no annotation key contains `=`",
    )
    .hint("write the pattern of the value after the key, as in {\"^KEY$\": \"^VALUE$\"}");
}

fn check_command_name(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let whole = pattern.text.strip_prefix('^').and_then(|text| text.strip_suffix('$'));
    let Some(name) = whole.filter(|_| pattern.place == PatternPlace::Command) else { return };
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !name.is_empty() && name.chars().all(is_part) {
        let message = format!("the pattern does not match the command `/bin/{name}`");
        sink.report_at(&rules::COMMAND_NAME, pattern.value, message)
            .hint(format!("write (^|/){name}$ for the program in any directory"));
    }
}

fn control_characters(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let Some((at, c)) = pattern.text.char_indices().find(|(_, c)| c.is_control()) else { return };
    let span = source_span(pattern.value, at..at + c.len_utf8());
    let is_boundary = &sink.text[span.clone()] == b"\\b";
    let message = if is_boundary {
        "\"\\b\" is a backspace in JSON".to_owned()
    } else {
        format!(
            "the pattern contains the control character U+{:04X}, which annotations and commands rarely have",
            u32::from(c)
        )
    };
    let fix = LintFix::replace("double the backslash", span.clone(), "\\\\b");
    let finding = sink.report_within(&rules::CONTROL_CHARACTER, pattern.value, span, message);
    if is_boundary {
        finding.hint("a word boundary is written \"\\\\b\"").fix(fix);
    }
}

/// Reports `\\` before a character that a single backslash was most likely meant to escape.
fn check_double_escapes(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let spans = escaped_backslashes(&pattern.text);
    let Some(first) = spans.first() else { return };
    let place = source_span(pattern.value, first.clone());
    let mut halved = pattern.text.clone();
    for span in spans.iter().rev() {
        halved.replace_range(span.clone(), "\\");
    }
    let sources: Vec<_> =
        spans.iter().map(|span| source_span(pattern.value, span.clone())).collect();
    let is_plain = sources.iter().all(|span| &sink.text[span.clone()] == br"\\\\");
    let fix = LintFix {
        description: "remove one level of backslashes".to_owned(),
        edits: sources.into_iter().map(|span| (span, br"\\".to_vec())).collect(),
    };
    sink.report_within(
        &rules::DOUBLE_ESCAPE,
        pattern.value,
        place,
        "the pattern matches a backslash in the text: it is probably escaped once too often",
    )
    .hint("one backslash of a pattern is two in JSON: \"\\\\.\"")
    .fix((is_plain && syntax::parse(&halved).is_ok()).then_some(fix));
}

/// Finds `\\` outside of brackets before a character that has a meaning after a single backslash.
fn escaped_backslashes(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut in_brackets = false;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => {
                let is_meant = |next: &u8| b".dwsbDWSB-/+*?()[]{}|^$".contains(next);
                if bytes.get(at + 1) == Some(&b'\\')
                    && !in_brackets
                    && bytes.get(at + 2).is_some_and(is_meant)
                {
                    found.push(at..at + 2);
                }
                at += 2;
                continue;
            }
            b'[' => in_brackets = true,
            b']' => in_brackets = false,
            _ => {}
        }
        at += 1;
    }
    found
}

fn dots(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let dots: Vec<_> = pattern.ast.dots_in_words().collect();
    let Some(&first) = dots.first() else { return };
    let source = |at: usize| source_span(pattern.value, at..at + 1);
    let fix = LintFix {
        description: "escape the dots".to_owned(),
        edits: dots
            .iter()
            .map(|&at| (source(at).start..source(at).start, br"\\".to_vec()))
            .collect(),
    };
    let message = if dots.len() == 1 {
        "this dot matches any character".to_owned()
    } else {
        format!("this dot and {} more match any character", dots.len() - 1)
    };
    sink.report_within(&rules::UNESCAPED_DOT, pattern.value, source(first), message)
        .hint("a full stop is written \"\\\\.\"")
        .fix(fix);
}

fn check_constructs(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let constructs = pattern.ast.constructs();
    let is_boundary = |kind| kind == ConstructKind::GnuBoundary;
    if let Some(construct) = constructs.iter().find(|construct| is_boundary(construct.kind)) {
        let written = &pattern.text[construct.span.clone()];
        let span = source_span(pattern.value, construct.span.clone());
        let message =
            format!("{written} is no boundary in Go's patterns: it matches the character itself");
        sink.report_within(&rules::MISLEADING_ESCAPE, pattern.value, span, message)
            .hint("the end of a word is \\b, the ends of the text are ^ and $");
    }
    let mut other = constructs.iter().filter(|construct| !is_boundary(construct.kind));
    if let Some(construct) = other.next() {
        let span = source_span(pattern.value, construct.span.clone());
        let more = match other.count() {
            0 => String::new(),
            count => format!(", and {count} more constructs of this pattern"),
        };
        let message = format!(
            "POSIX extended regular expressions do not have {}{more}",
            name(construct.kind)
        );
        sink.report_within(&rules::NOT_POSIX, pattern.value, span, message);
    }
}

fn name(kind: ConstructKind) -> &'static str {
    match kind {
        ConstructKind::PerlClass => "classes such as \\d and \\w",
        ConstructKind::UnicodeClass => "Unicode classes",
        ConstructKind::WordBoundary => "\\b and \\B",
        ConstructKind::TextAnchor => "\\A and \\z",
        ConstructKind::CharacterEscape => "escapes for characters",
        ConstructKind::Quotation => "\\Q and \\E",
        ConstructKind::BracketEscape => "escapes in brackets",
        ConstructKind::LazyRepetition => "non-greedy repetition",
        ConstructKind::Flags => "flags",
        ConstructKind::PlainGroup => "groups that do not capture",
        ConstructKind::NamedGroup => "named groups",
        ConstructKind::GnuBoundary => "boundaries",
    }
}

/// Reports a star that repeats a slash, which is never intended.
fn glob(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let Some(at) = pattern.text.find("/*") else { return };
    let span = source_span(pattern.value, at..at + 2);
    sink.report_within(
        &rules::GLOB_PATTERN,
        pattern.value,
        span,
        "the star repeats the slash before it",
    )
    .hint("any text is .* in a regular expression, any text without a slash [^/]*");
}

fn anchors(pattern: &ParsedPattern<'_>, sink: &mut FindingSink<'_>) {
    let ParsedPattern { value, text, ast, .. } = pattern;
    let start = ast.is_anchored_at_start() || starts_open(text.trim_start_matches(['(', '^']));
    let end = ast.is_anchored_at_end() || ends_open(text.trim_end_matches([')', '$']));
    if !start && !end && !matches_everything(text) {
        let finding = sink.report_at(
            &rules::UNANCHORED_PATTERN,
            *value,
            "the pattern is not anchored: it may match any part of a text",
        );
        finding.hint(if text.contains('|') && (text.starts_with('^') || text.ends_with('$')) {
            "^ and $ belong to one alternative only: put the alternatives into (…)"
        } else {
            "write ^ and $ around it if it must match the whole text"
        });
    }
}

/// Returns whether a pattern starts with a wildcard.
fn starts_open(text: &str) -> bool {
    text.starts_with(".*") || text.starts_with(".+")
}

/// Returns whether a pattern ends with a wildcard.
fn ends_open(text: &str) -> bool {
    text.ends_with(".*") || text.ends_with(".+")
}
