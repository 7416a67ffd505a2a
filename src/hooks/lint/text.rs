//! Linting one text.

use std::ops::Range;
use std::path::Path;

use super::fields::Fields;
use super::finding::Sink;
use super::fix::touches;
use super::program::Programs;
use super::repair::{self, Repaired};
use super::{
    FileChecks, Finding, LintOptions, Rule, apply, keys, patterns, program, rules, schema,
};
use crate::hooks::{Consumer, Definition, Fault, HookError, PathCheck, SchemaOptions};
use crate::json::{Document, Kind, Location};

/// Lints the text of a hook file.
///
/// Nothing but the text is looked at, unless the options ask for it: then the hook's program is looked
/// up, too. The path is what findings name; it need not exist. Findings come in the order of the text.
pub fn lint_text(path: &Path, text: &[u8], options: &LintOptions) -> Vec<Finding> {
    check(path, text, options, &mut Programs::new(options)).findings
}

/// What is known of a text that was linted.
#[derive(Debug)]
pub struct Checked {
    pub findings: Vec<Finding>,
    pub use_: Usability,
}

/// What readers make of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usability {
    /// It is a hook that can apply.
    Hook,
    /// It is a hook that never applies.
    NeverApplies,
    /// Consumers silently ignore the file.
    LeftOut,
    /// Consumers reject the file.
    Refused,
}

/// Lints one of several texts.
pub fn check(path: &Path, text: &[u8], options: &LintOptions, programs: &mut Programs) -> Checked {
    let mut sink = Sink::new(path, text, options);
    let use_ = match Document::parse(text) {
        Ok(document) => parsed(&document, options, programs, &mut sink),
        Err(error) => {
            let repaired = Repaired::new(text);
            match Document::parse(&repaired.text) {
                Ok(document) => {
                    repaired.report(error, &mut sink);
                    content(&document, options, programs, &mut sink);
                }
                Err(second) if second.offset > error.offset => {
                    repaired.report(error, &mut sink);
                    repair::syntax_error(second, &mut sink);
                }
                Err(_) => repaired.report(error, &mut sink),
            }
            Usability::Refused
        }
    };
    let mut findings = sink.finish();
    if use_ != Usability::Refused {
        drop_harmful_fixes(text, options, &mut findings);
    }
    Checked { findings, use_ }
}

/// Lints a text that is JSON.
fn parsed(
    document: &Document<'_>,
    options: &LintOptions,
    programs: &mut Programs,
    sink: &mut Sink<'_>,
) -> Usability {
    let use_ = content(document, options, programs, sink);
    if let Err(fault) = load(document, &options.consumer) {
        // The checks find what the loader would; if they ever do not, its word counts.
        if !sink.rejects() {
            let finding = of_fault(fault, sink);
            sink.push(finding);
        }
        return Usability::Refused;
    }
    use_
}

/// Runs all checks on a document.
fn content(
    document: &Document<'_>,
    options: &LintOptions,
    programs: &mut Programs,
    sink: &mut Sink<'_>,
) -> Usability {
    let fields = Fields::read(document);
    schema::check(&fields, sink);
    keys::check(document, &fields, sink);
    if document.root().kind() != Kind::Object || is_about_something_else(&fields) {
        return Usability::Refused;
    }
    let applies = patterns::check_conditions(&fields, sink);
    patterns::check_patterns(&fields, sink);
    let runs = schema::check_stages(&fields, sink);
    program::check(&fields, sink);
    program::replaced_by_cdi(&fields, sink);
    let exists = match &options.files {
        FileChecks::Skip => true,
        FileChecks::Trust(_) => programs.check(&fields, sink),
    };
    match (exists, applies && runs) {
        (false, _) => Usability::LeftOut,
        (true, true) => Usability::Hook,
        (true, false) => Usability::NeverApplies,
    }
}

/// Returns whether a file has nothing of a hook file, so that what it lacks need not be listed.
fn is_about_something_else(fields: &Fields<'_>) -> bool {
    fields.hook.is_none() && fields.when.is_none() && fields.stages.is_none()
}

/// Reads a document as a consumer does, its program left alone.
pub fn load(document: &Document<'_>, consumer: &Consumer) -> Result<Definition, Fault> {
    let extension_stages: Vec<_> =
        consumer.extension_stages.iter().map(|&s| s.to_owned()).collect();
    let options =
        SchemaOptions { extension_stages: &extension_stages, path_check: PathCheck::Skip };
    Definition::from_document(document, options)
}

/// The longest text that is corrected: each fix is tried on all of it. No longer one is written by hand.
const MAX_FIXED_BYTES: usize = 64 << 10;

/// Leaves out fixes after which a good file would not load any more.
fn drop_harmful_fixes(text: &[u8], options: &LintOptions, findings: &mut [Finding]) {
    if text.len() > MAX_FIXED_BYTES {
        return findings.iter_mut().for_each(|finding| finding.fix = None);
    }
    for finding in findings {
        let loads = |text: &[u8]| {
            Document::parse(text).is_ok_and(|document| load(&document, &options.consumer).is_ok())
        };
        finding.fix.take_if(|fix| !loads(&apply(text, [&*fix])));
    }
}

/// Makes a finding of what the loader says.
fn of_fault(fault: Fault, sink: &Sink<'_>) -> Finding {
    let rule = match &fault.error {
        HookError::Syntax(_) => &rules::INVALID_JSON,
        HookError::Type { .. } => &rules::WRONG_TYPE,
        HookError::UnknownVersion { .. } => &rules::UNKNOWN_VERSION,
        HookError::MissingHook => &rules::MISSING_HOOK,
        HookError::MissingPath => &rules::MISSING_PATH,
        HookError::MissingStages => &rules::MISSING_STAGES,
        HookError::BothSet(..) => &rules::BOTH_SPELLINGS,
        HookError::UnknownStage { .. } => &rules::UNKNOWN_STAGE,
        HookError::Pattern { .. } => &rules::INVALID_PATTERN,
        HookError::PathMissing { .. } => &rules::MISSING_PROGRAM,
        HookError::PathLookup { .. } => &rules::PROGRAM_LOOKUP,
        HookError::Read(_) | HookError::List(_) => &rules::UNREADABLE_FILE,
    };
    let error = &fault.error;
    let message = match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let mut finding = Finding::new(rule, sink.path, message);
    finding.help = fault.error.hint();
    finding.location = fault.location.map(|location| Location {
        pointer: location.pointer,
        ..Location::of_span(sink.text, location.span)
    });
    finding
}

/// Rounds after which fixing ends. One round makes way for the next, and two or three are enough.
const MAX_ROUNDS: usize = 10;

/// A text with all fixes applied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fixed {
    pub text: Vec<u8>,
    /// What was done, in order.
    pub applied: Vec<AppliedFix>,
}

/// A fix that was applied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AppliedFix {
    /// The rule of the finding.
    pub rule: &'static Rule,
    /// What was done, as an order.
    pub description: String,
    /// The line of the finding when it was found; earlier fixes may have moved it.
    pub line: Option<usize>,
}

/// Applies all fixes of a text, and those of what is found then, until there are no more.
pub fn fix_text(path: &Path, text: &[u8], options: &LintOptions) -> Fixed {
    let mut fixed = Fixed { text: text.to_vec(), applied: Vec::new() };
    for _ in 0..MAX_ROUNDS {
        let findings = lint_text(path, &fixed.text, options);
        let mut spans: Vec<Range<usize>> = Vec::new();
        let mut fixes = Vec::new();
        for finding in &findings {
            let Some(fix) = &finding.fix else { continue };
            // Here too, so that the report is what is done.
            if fix.edits.iter().any(|(span, _)| spans.iter().any(|other| touches(span, other))) {
                continue;
            }
            spans.extend(fix.edits.iter().map(|(span, _)| span.clone()));
            fixes.push(fix);
            fixed.applied.push(AppliedFix {
                rule: finding.rule,
                description: fix.description.clone(),
                line: finding.location.as_ref().map(|at| at.line),
            });
        }
        if fixes.is_empty() {
            break;
        }
        fixed.text = apply(&fixed.text, fixes);
    }
    fixed
}
