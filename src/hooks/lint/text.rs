//! Lints the text of one hook file, and applies fixes to it.

use std::ops::Range;
use std::path::Path;

use super::fields::FileFields;
use super::finding::FindingSink;
use super::fix::ranges_touch;
use super::program::ProgramChecker;
use super::repair::{self, RepairedText};
use super::{HookFinding, LintOptions, LintRule, apply, keys, patterns, program, rules, schema};
use crate::hooks::{Consumer, HookDefinition, HookError, HookFault, ParseOptions, PathCheck};
use crate::json::{JsonDocument, JsonKind, TextLocation};

/// Lints the text of a hook file.
///
/// If [`LintOptions::files`] is set, the hook's program is checked, too. Findings name the path,
/// which need not exist, and come in the order of the text.
pub fn lint_text(path: &Path, text: &[u8], options: &LintOptions) -> Vec<HookFinding> {
    check(path, text, options, &mut ProgramChecker::new(options)).findings
}

/// The result of linting a text.
#[derive(Debug)]
pub struct TextCheck {
    pub findings: Vec<HookFinding>,
    pub usability: FileUsability,
}

/// Treatment of a hook file by its consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUsability {
    /// A hook that can apply.
    Hook,
    /// A hook that never applies.
    NeverApplies,
    /// Consumers silently ignore the file.
    Skipped,
    Rejected,
}

/// Lints a text. Texts that share `programs` check each program once.
pub fn check(
    path: &Path,
    text: &[u8],
    options: &LintOptions,
    programs: &mut ProgramChecker,
) -> TextCheck {
    let mut sink = FindingSink::new(path, text, options);
    let usability = match JsonDocument::parse(text) {
        Ok(document) => lint_document(&document, options, programs, &mut sink),
        Err(error) => {
            let repaired = RepairedText::new(text);
            match JsonDocument::parse(&repaired.text) {
                Ok(document) => {
                    repaired.report(error, &mut sink);
                    check_document(&document, options, programs, &mut sink);
                }
                Err(second) if second.offset > error.offset => {
                    repaired.report(error, &mut sink);
                    repair::syntax_error(second, &mut sink);
                }
                Err(_) => repaired.report(error, &mut sink),
            }
            FileUsability::Rejected
        }
    };
    let mut findings = sink.finish();
    if usability != FileUsability::Rejected {
        drop_harmful_fixes(text, options, &mut findings);
    }
    TextCheck { findings, usability }
}

/// Lints a text that is valid JSON.
fn lint_document(
    document: &JsonDocument<'_>,
    options: &LintOptions,
    programs: &mut ProgramChecker,
    sink: &mut FindingSink<'_>,
) -> FileUsability {
    let usability = check_document(document, options, programs, sink);
    if let Err(fault) = load(document, &options.consumer) {
        // The checks should find every error of the loader; report an error that they miss.
        if !sink.has_rejection() {
            let finding = to_finding(fault, sink);
            sink.push(finding);
        }
        return FileUsability::Rejected;
    }
    usability
}

/// Runs all checks on a document.
fn check_document(
    document: &JsonDocument<'_>,
    options: &LintOptions,
    programs: &mut ProgramChecker,
    sink: &mut FindingSink<'_>,
) -> FileUsability {
    let fields = FileFields::read(document);
    schema::check(&fields, sink);
    keys::check(document, &fields, sink);
    if document.root().kind() != JsonKind::Object || has_no_hook_field(&fields) {
        return FileUsability::Rejected;
    }
    let applies = patterns::check_conditions(&fields, sink);
    patterns::check_patterns(&fields, sink);
    let runs = schema::check_stages(&fields, sink);
    program::check(&fields, sink);
    program::replaced_by_cdi(&fields, sink);
    let exists = options.files.is_none() || programs.check(&fields, sink);
    match (exists, applies && runs) {
        (false, _) => FileUsability::Skipped,
        (true, true) => FileUsability::Hook,
        (true, false) => FileUsability::NeverApplies,
    }
}

/// Returns whether a file has no field of a hook file, so that only its keys and its schema are
/// checked.
fn has_no_hook_field(fields: &FileFields<'_>) -> bool {
    fields.hook.is_none() && fields.when.is_none() && fields.stages.is_none()
}

/// Decodes a document as a consumer does, without looking up its program.
pub fn load(document: &JsonDocument<'_>, consumer: &Consumer) -> Result<HookDefinition, HookFault> {
    let extension_stages: Vec<_> =
        consumer.extension_stages.iter().map(|&s| s.to_owned()).collect();
    let options = ParseOptions { extension_stages: &extension_stages, path_check: PathCheck::Skip };
    HookDefinition::from_document(document, options)
}

/// Size limit of texts that get fixes: each fix is tried on the whole text. Texts written by hand
/// are shorter.
pub const MAX_FIXED_BYTES: usize = 64 << 10;

/// Drops fixes after which a valid file would no longer load.
fn drop_harmful_fixes(text: &[u8], options: &LintOptions, findings: &mut [HookFinding]) {
    if text.len() > MAX_FIXED_BYTES {
        return findings.iter_mut().for_each(|finding| finding.fix = None);
    }
    for finding in findings {
        let loads = |text: &[u8]| {
            JsonDocument::parse(text)
                .is_ok_and(|document| load(&document, &options.consumer).is_ok())
        };
        finding.fix.take_if(|fix| !loads(&apply(text, [&*fix])));
    }
}

/// Converts an error of the loader to a finding.
fn to_finding(fault: HookFault, sink: &FindingSink<'_>) -> HookFinding {
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
    let mut finding = HookFinding::new(rule, sink.path, message);
    finding.hint = fault.error.hint();
    finding.location = fault.location.map(|location| TextLocation {
        pointer: location.pointer,
        ..TextLocation::of_span(sink.text, location.span)
    });
    finding
}

/// Maximum number of rounds of fixes. Fixes can enable others; two or three rounds are enough.
const MAX_ROUNDS: usize = 10;

/// A text with all fixes applied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FixedText {
    pub text: Vec<u8>,
    /// The applied fixes, in order.
    pub applied: Vec<AppliedFix>,
}

/// A fix that was applied.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AppliedFix {
    /// The rule of the finding.
    pub rule: &'static LintRule,
    /// Imperative description of the fix.
    pub description: String,
    /// The line of the finding when it was found; earlier fixes may have moved it.
    pub line: Option<usize>,
}

/// Lints a text and applies the fixes, in up to ten rounds, until no finding has a fix.
pub fn fix_text(path: &Path, text: &[u8], options: &LintOptions) -> FixedText {
    let mut fixed = FixedText { text: text.to_vec(), applied: Vec::new() };
    for _ in 0..MAX_ROUNDS {
        let findings = lint_text(path, &fixed.text, options);
        let mut spans: Vec<Range<usize>> = Vec::new();
        let mut fixes = Vec::new();
        for finding in &findings {
            let Some(fix) = &finding.fix else { continue };
            // Skips the fixes that `apply` skips, so that the report is accurate.
            if fix.edits.iter().any(|(span, _)| spans.iter().any(|other| ranges_touch(span, other)))
            {
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
