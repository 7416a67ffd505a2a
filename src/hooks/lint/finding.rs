//! Findings, and the collector of the findings about one text.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{LintFix, LintOptions, LintRule, Severity, rules};
use crate::json::{JsonValue, TextLocation};

/// A mistake in a hook file, or a note about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HookFinding {
    /// The rule that reports the finding.
    pub rule: &'static LintRule,
    /// Severity in this case, which depends on the rule, the consumer and the options.
    pub severity: Severity,
    pub path: PathBuf,
    /// Position in the file, if the finding is about its content.
    pub location: Option<TextLocation>,
    pub message: String,
    pub hint: Option<String>,
    /// Other files and positions involved.
    pub related: Vec<RelatedPlace>,
    pub fix: Option<LintFix>,
    /// The hook's program, if [`fix_program`](super::fix_program) fixes it.
    pub program_fix: Option<PathBuf>,
}

/// Another file or position involved in a finding.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RelatedPlace {
    pub path: PathBuf,
    pub location: Option<TextLocation>,
    pub message: String,
}

impl HookFinding {
    /// Returns whether an automatic fix exists.
    pub fn is_fixable(&self) -> bool {
        self.fix.is_some() || self.program_fix.is_some()
    }

    /// Returns a finding about a file as a whole.
    pub(super) fn new(rule: &'static LintRule, path: &Path, message: String) -> Self {
        HookFinding {
            rule,
            severity: rule.severity,
            path: path.to_owned(),
            location: None,
            message,
            hint: None,
            related: Vec::new(),
            fix: None,
            program_fix: None,
        }
    }

    pub(super) fn severity(&mut self, severity: Severity) -> &mut Self {
        self.severity = severity;
        self
    }

    pub(super) fn hint(&mut self, hint: impl Into<String>) -> &mut Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn add_related(
        &mut self,
        path: &Path,
        location: Option<TextLocation>,
        message: impl Into<String>,
    ) -> &mut Self {
        let related = RelatedPlace { path: path.to_owned(), location, message: message.into() };
        self.related.push(related);
        self
    }

    pub(super) fn fix(&mut self, fix: impl Into<Option<LintFix>>) -> &mut Self {
        self.fix = fix.into();
        self
    }
}

/// A file or directory that was linted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LintedFile {
    pub path: PathBuf,
    /// Content of the file, if it could be read and has findings.
    pub text: Option<Vec<u8>>,
    /// Findings in the order of the text.
    pub findings: Vec<HookFinding>,
}

impl LintedFile {
    /// Combines a text that was not read from a file with its findings.
    pub fn new(path: &Path, text: Vec<u8>, findings: Vec<HookFinding>) -> Self {
        LintedFile { path: path.to_owned(), text: Some(text), findings }
    }
}

/// The result of linting directories.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LintReport {
    /// Directories and files in the order they were read.
    pub files: Vec<LintedFile>,
    pub hook_files: usize,
    /// Number of CDI specifications.
    pub spec_files: usize,
}

impl LintReport {
    /// Returns all findings, file by file.
    pub fn findings(&self) -> impl Iterator<Item = &HookFinding> {
        self.files.iter().flat_map(|file| &file.findings)
    }

    /// Counts the findings of one severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings().filter(|finding| finding.severity == severity).count()
    }
}

/// Maximum number of findings about one text.
const MAX_FINDINGS: usize = 200;

/// Collects the findings about one text.
pub struct FindingSink<'a> {
    pub path: &'a Path,
    pub text: &'a [u8],
    pub options: &'a LintOptions,
    findings: Vec<HookFinding>,
    /// The last finding that was left out because of the limit.
    surplus: Option<HookFinding>,
}

impl<'a> FindingSink<'a> {
    pub(super) fn new(path: &'a Path, text: &'a [u8], options: &'a LintOptions) -> Self {
        FindingSink { path, text, options, findings: Vec::new(), surplus: None }
    }

    /// Reports a finding about the file as a whole.
    pub fn file(
        &mut self,
        rule: &'static LintRule,
        message: impl Into<String>,
    ) -> &mut HookFinding {
        let finding = HookFinding::new(rule, self.path, message.into());
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
            let last = self.findings.len() - 1;
            &mut self.findings[last]
        } else {
            self.surplus.insert(finding)
        }
    }

    /// Reports a finding about a value, or about an object member if `value` is its key.
    pub fn report_at(
        &mut self,
        rule: &'static LintRule,
        value: JsonValue<'_>,
        message: impl Into<String>,
    ) -> &mut HookFinding {
        let location = (!self.is_full()).then(|| value.location());
        let finding = self.file(rule, message);
        finding.location = location;
        finding
    }

    /// Reports a finding about a part of a value.
    pub fn report_within(
        &mut self,
        rule: &'static LintRule,
        value: JsonValue<'_>,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> &mut HookFinding {
        let text = self.text;
        let location = (!self.is_full()).then(|| TextLocation {
            pointer: value.pointer(),
            ..TextLocation::of_span(text, span)
        });
        let finding = self.file(rule, message);
        finding.location = location;
        finding
    }

    /// Reports a finding about a part of the text that is not a value.
    pub fn span(
        &mut self,
        rule: &'static LintRule,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> &mut HookFinding {
        let location = (!self.is_full()).then(|| TextLocation::of_span(self.text, span));
        let finding = self.file(rule, message);
        finding.location = location;
        finding
    }

    /// Returns whether the limit is reached, so that checks can stop.
    pub fn is_full(&self) -> bool {
        self.findings.len() >= MAX_FINDINGS
    }

    /// Returns whether any finding makes consumers reject the file.
    pub fn has_rejection(&self) -> bool {
        self.findings.iter().any(|finding| finding.rule.rejects)
    }

    /// Returns whether a rule has found something.
    pub fn has_finding(&self, rule: &'static LintRule) -> bool {
        self.findings.iter().any(|finding| finding.rule.code == rule.code)
    }

    /// Adds a finding even beyond the limit.
    pub fn push(&mut self, finding: HookFinding) {
        self.findings.push(finding);
    }

    /// Returns the findings in the order of the text, after applying the options.
    pub fn finish(mut self) -> Vec<HookFinding> {
        if self.surplus.take().is_some() {
            let message = format!("more than {MAX_FINDINGS} findings: the rest is left out");
            self.findings.push(HookFinding::new(&rules::TOO_MANY_FINDINGS, self.path, message));
        }
        filter(&mut self.findings, self.options);
        self.findings.sort_by_key(|finding| {
            let start = finding.location.as_ref().map(|at| (at.span.start, at.span.end));
            (start.is_none(), start, finding.rule.code)
        });
        self.findings
    }
}

/// Sets severities according to the rule levels in the options, and removes suppressed findings.
pub fn filter(findings: &mut Vec<HookFinding>, options: &LintOptions) {
    findings.retain_mut(|finding| match options.levels.severity(finding.rule, finding.severity) {
        Some(severity) => {
            finding.severity = severity;
            true
        }
        None => false,
    });
}
