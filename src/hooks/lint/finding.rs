//! What was found.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{Fix, Rule};
use crate::json::Location;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; correct files may have it.
    Note,
    /// It works, but most likely not as meant.
    Warning,
    /// It does not work, or others can take it over.
    Error,
}

impl Severity {
    /// Returns the name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

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
