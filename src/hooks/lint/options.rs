//! What to look for.

use std::path::PathBuf;

use super::{Rule, Severity};
use crate::hooks::consumer::{self, Consumer};
use crate::hooks::trust::TrustOptions;

/// What to lint, for whom, and what counts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LintOptions {
    /// The directories for [`lint_dirs`](super::lint_dirs), in order of increasing precedence.
    pub dirs: Vec<PathBuf>,
    /// Directories with hook files that the consumer does not read, for
    /// [`lint_dirs`](super::lint_dirs) to report.
    pub unread: Vec<UnreadDirectory>,
    pub consumer: Consumer,
    /// Who else may read them; what only they would object to is a note.
    pub others: Vec<Consumer>,
    /// Whether to look at files besides the text: the hook's program, owners and permissions.
    pub files: FileChecks,
    /// Whether hook files may not be installed yet: a program that does not exist is a note if one of its
    /// name is in `bin` or `../bin` beside the hook file.
    pub drafts: bool,
    /// What was asked for about single rules.
    pub levels: Levels,
}

/// A directory with hook files that the consumer does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadDirectory {
    pub path: PathBuf,
    /// How many hook files there are.
    pub hook_files: usize,
    /// What to do for the consumer to read it.
    pub help: String,
}

/// What of the file system to look at besides the text of hook files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChecks {
    /// Nothing: for files that are not installed yet.
    Skip,
    /// Programs must exist, and only these users may change them or the hook files.
    Trust(TrustOptions),
}

impl LintOptions {
    /// Returns what suits a consumer: its directories, and as others those that read them too.
    pub fn for_consumer(consumer: &Consumer) -> Self {
        let shares_dir = |other: &Consumer| {
            other != consumer && other.dirs.iter().any(|dir| consumer.dirs.contains(dir))
        };
        LintOptions {
            dirs: consumer.dirs.iter().map(PathBuf::from).collect(),
            unread: Vec::new(),
            consumer: consumer.clone(),
            others: Consumer::ALL.into_iter().filter(shares_dir).collect(),
            files: FileChecks::Skip,
            drafts: false,
            levels: Levels::default(),
        }
    }
}

impl Default for LintOptions {
    fn default() -> Self {
        LintOptions::for_consumer(&consumer::PODMAN)
    }
}

/// What is to be done with the findings of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Allow,
    Report(Severity),
}

/// Levels of single rules; the last one given for a rule counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels(Vec<(&'static str, Level)>);

impl Levels {
    /// Sets the level of a rule.
    pub fn set(&mut self, rule: &'static Rule, level: Level) {
        self.0.push((rule.code, level));
    }

    /// Returns the severity of a finding, or none if it is to be left out.
    pub fn severity(&self, rule: &Rule, severity: Severity) -> Option<Severity> {
        match self.0.iter().rev().find(|(code, _)| *code == rule.code) {
            Some((_, Level::Allow)) => None,
            Some((_, Level::Report(severity))) => Some(*severity),
            None => Some(severity),
        }
    }
}
