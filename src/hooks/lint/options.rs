//! Options of the linter.

use std::path::PathBuf;

use super::{LintRule, Severity};
use crate::hooks::consumer::{self, Consumer};
use crate::hooks::trust::TrustOptions;

/// Directories to lint, consumers to lint for, and levels of rules.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LintOptions {
    /// The directories for [`lint_dirs`](super::lint_dirs), in order of increasing precedence.
    pub dirs: Vec<PathBuf>,
    /// Directories with hook files that the consumer does not read, for
    /// [`lint_dirs`](super::lint_dirs) to report.
    pub unread: Vec<UnreadDirectory>,
    pub consumer: Consumer,
    /// Other consumers that may read the files; findings that affect only them are notes.
    pub others: Vec<Consumer>,
    /// If set, programs must exist, and only the users that the options trust may be able to change
    /// the programs and the hook files. `None` is for files that are not installed yet.
    pub files: Option<TrustOptions>,
    /// If set, hook files may not be installed yet: a missing program is a note if `bin` or
    /// `../bin` beside the hook file contains a program of that name.
    pub drafts: bool,
    pub levels: RuleLevels,
}

/// A directory with hook files that the consumer does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadDirectory {
    pub path: PathBuf,
    /// Number of hook files in it.
    pub hook_files: usize,
    /// Instructions that make the consumer read the directory.
    pub hint: String,
}

impl UnreadDirectory {
    /// Returns the message that the consumer does not read the directory.
    pub fn message(&self, consumer: &Consumer) -> String {
        let files = match self.hook_files {
            1 => "its hook file has".to_owned(),
            many => format!("its {many} hook files have"),
        };
        format!("{} does not read this directory: {files} no effect", consumer.name)
    }
}

impl LintOptions {
    /// Returns the defaults for a consumer: `dirs` are its directories, `others` are the consumers
    /// that share at least one of them.
    pub fn for_consumer(consumer: &Consumer) -> Self {
        let shares_dir = |other: &Consumer| {
            other != consumer && other.dirs.iter().any(|dir| consumer.dirs.contains(dir))
        };
        LintOptions {
            dirs: consumer.dirs.iter().map(PathBuf::from).collect(),
            unread: Vec::new(),
            consumer: consumer.clone(),
            others: Consumer::ALL.into_iter().filter(shares_dir).collect(),
            files: None,
            drafts: false,
            levels: RuleLevels::default(),
        }
    }
}

impl Default for LintOptions {
    fn default() -> Self {
        LintOptions::for_consumer(&consumer::PODMAN)
    }
}

/// Treatment of the findings of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleLevel {
    Allow,
    Report(Severity),
}

/// Levels of single rules; the last one given for a rule counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleLevels(Vec<(&'static str, RuleLevel)>);

impl RuleLevels {
    /// Sets the level of a rule.
    pub fn set(&mut self, rule: &'static LintRule, level: RuleLevel) {
        self.0.push((rule.code, level));
    }

    /// Returns the severity of a finding, or `None` if it is suppressed.
    pub fn severity(&self, rule: &LintRule, severity: Severity) -> Option<Severity> {
        match self.0.iter().rev().find(|(code, _)| *code == rule.code) {
            Some((_, RuleLevel::Allow)) => None,
            Some((_, RuleLevel::Report(severity))) => Some(*severity),
            None => Some(severity),
        }
    }
}
