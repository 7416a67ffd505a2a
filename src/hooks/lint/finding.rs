//! What was found, and where the checks of one text leave it.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{Fix, LintOptions, Rule, Severity, rules};
use crate::json::{Location, Value};

/// One thing that is wrong, or worth knowing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The rule that found it.
    pub rule: &'static Rule,
    /// How bad it is here, which is up to the rule, the consumer and the options.
    pub severity: Severity,
    pub path: PathBuf,
    /// Where in the file, if it is about its content.
    pub location: Option<Location>,
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Other places that have to do with it.
    pub related: Vec<Related>,
    /// How to correct it without a person.
    pub fix: Option<Fix>,
}

/// Another place that has to do with a finding.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Related {
    pub path: PathBuf,
    pub location: Option<Location>,
    pub message: String,
}

impl Finding {
    /// Starts a finding about a file as a whole.
    pub(super) fn new(rule: &'static Rule, path: &Path, message: String) -> Self {
        Finding {
            rule,
            severity: rule.severity,
            path: path.to_owned(),
            location: None,
            message,
            help: None,
            related: Vec::new(),
            fix: None,
        }
    }

    pub(super) fn severity(&mut self, severity: Severity) -> &mut Self {
        self.severity = severity;
        self
    }

    pub(super) fn help(&mut self, help: impl Into<String>) -> &mut Self {
        self.help = Some(help.into());
        self
    }

    pub(super) fn related(
        &mut self,
        path: &Path,
        location: Option<Location>,
        message: impl Into<String>,
    ) -> &mut Self {
        let related = Related { path: path.to_owned(), location, message: message.into() };
        self.related.push(related);
        self
    }

    pub(super) fn fix(&mut self, fix: impl Into<Option<Fix>>) -> &mut Self {
        self.fix = fix.into();
        self
    }
}

/// One file or directory that was looked at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LintedFile {
    pub path: PathBuf,
    /// What the file holds, if it could be read and there are findings.
    pub text: Option<Vec<u8>>,
    /// What was found, in the order of the text.
    pub findings: Vec<Finding>,
}

impl LintedFile {
    /// Puts together a text that was not read from a file and what was found in it.
    pub fn new(path: &Path, text: Vec<u8>, findings: Vec<Finding>) -> Self {
        LintedFile { path: path.to_owned(), text: Some(text), findings }
    }
}

/// All that was looked at.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The directories and files in the order they are read in.
    pub files: Vec<LintedFile>,
    /// How many of them are hook files.
    pub hook_files: usize,
}

impl Report {
    /// Returns all findings, file by file.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.files.iter().flat_map(|file| &file.findings)
    }

    /// Counts the findings of one severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings().filter(|finding| finding.severity == severity).count()
    }
}

/// The most findings about one text. Who has more corrects some first.
const MAX_FINDINGS: usize = 200;

/// Collects the findings about one text.
pub struct Sink<'a> {
    pub path: &'a Path,
    pub text: &'a [u8],
    pub options: &'a LintOptions,
    findings: Vec<Finding>,
    /// Takes what comes after the last that is kept.
    surplus: Option<Finding>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(path: &'a Path, text: &'a [u8], options: &'a LintOptions) -> Self {
        Sink { path, text, options, findings: Vec::new(), surplus: None }
    }

    /// Reports something about the file as a whole.
    pub fn file(&mut self, rule: &'static Rule, message: impl Into<String>) -> &mut Finding {
        let finding = Finding::new(rule, self.path, message.into());
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(finding);
            let last = self.findings.len() - 1;
            &mut self.findings[last]
        } else {
            self.surplus.insert(finding)
        }
    }

    /// Reports something about a value, or about a key and so its member.
    pub fn at(
        &mut self,
        rule: &'static Rule,
        value: Value<'_>,
        message: impl Into<String>,
    ) -> &mut Finding {
        let location = (!self.is_full()).then(|| value.location());
        let finding = self.file(rule, message);
        finding.location = location;
        finding
    }

    /// Reports something about a part of a value.
    pub fn within(
        &mut self,
        rule: &'static Rule,
        value: Value<'_>,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> &mut Finding {
        let text = self.text;
        let location = (!self.is_full())
            .then(|| Location { pointer: value.pointer(), ..Location::of_span(text, span) });
        let finding = self.file(rule, message);
        finding.location = location;
        finding
    }

    /// Reports something about a part of the text that is no value.
    pub fn span(
        &mut self,
        rule: &'static Rule,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> &mut Finding {
        let location = (!self.is_full()).then(|| Location::of_span(self.text, span));
        let finding = self.file(rule, message);
        finding.location = location;
        finding
    }

    /// Returns whether nothing more is kept, and so nothing more need be looked for.
    pub fn is_full(&self) -> bool {
        self.findings.len() >= MAX_FINDINGS
    }

    /// Returns whether some finding means that the file is rejected.
    pub fn rejects(&self) -> bool {
        self.findings.iter().any(|finding| finding.rule.rejects)
    }

    /// Returns whether a rule has found something.
    pub fn found(&self, rule: &'static Rule) -> bool {
        self.findings.iter().any(|finding| finding.rule.code == rule.code)
    }

    /// Adds a finding even when there are too many.
    pub fn push(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Returns what is left after the options, in the order of the text.
    pub fn finish(mut self) -> Vec<Finding> {
        if self.surplus.take().is_some() {
            let message = format!("more than {MAX_FINDINGS} findings: the rest is left out");
            self.findings.push(Finding::new(&rules::TOO_MANY_FINDINGS, self.path, message));
        }
        filter(&mut self.findings, self.options);
        self.findings.sort_by_key(|finding| {
            let start = finding.location.as_ref().map(|at| (at.span.start, at.span.end));
            (start.is_none(), start, finding.rule.code)
        });
        self.findings
    }
}

/// Applies what was asked for about single rules.
pub fn filter(findings: &mut Vec<Finding>, options: &LintOptions) {
    findings.retain_mut(|finding| match options.levels.severity(finding.rule, finding.severity) {
        Some(severity) => {
            finding.severity = severity;
            true
        }
        None => false,
    });
}
