//! What became of each hook on its way, and what stopped all.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::RequiredHookError;
use crate::hooks::filter::FilterRun;
use crate::hooks::trust::TrustError;
use crate::hooks::{ConfigError, FilterError, Hook, MatchError, Problem, Selection, Stage};

/// A configuration that hooks were added to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Injected {
    /// The new configuration, byte for byte the old one if no hook matches.
    pub config: Vec<u8>,
    pub report: Report,
}

/// What happened on the way, as far as it went.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The hook files that match, in the order they are injected in.
    pub hooks: Vec<MatchedHook>,
    /// Hook files that are left out.
    pub problems: Vec<Problem>,
    /// Directories that do not exist, which is no fault.
    pub missing_dirs: Vec<PathBuf>,
    /// The hooks of stages that are kept apart; of `precreate` also if they were run.
    pub extension_hooks: BTreeMap<String, Vec<Hook>>,
    /// The `precreate` hooks that were run and worked.
    pub precreate: Vec<PrecreateRun>,
    /// Whether `precreate` hooks match that were not to be run.
    pub precreate_skipped: bool,
}

impl Report {
    /// Returns what `precreate` hooks wrote to standard error, each line with its program before it
    /// and without control characters.
    pub fn precreate_lines(&self) -> Vec<String> {
        let line = |run: &PrecreateRun, line| format!("{}: {line}", run.program);
        let runs = self.precreate.iter();
        runs.flat_map(|run| run.run.lines().into_iter().map(move |text| line(run, text))).collect()
    }
}

/// A hook file that matches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatchedHook {
    pub file: PathBuf,
    /// The condition that decided, in words.
    pub reason: String,
    /// The stages it goes to.
    pub stages: Vec<Stage>,
    /// Who can change it that is not trusted, if it was rejected for that.
    pub rejected: Option<String>,
}

/// A `precreate` hook that was run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrecreateRun {
    pub file: PathBuf,
    pub program: String,
    /// What it wrote, how long it took, and whether it changed the configuration.
    pub run: FilterRun,
}

/// Hooks that could not be added, and how far it went.
#[derive(Debug, thiserror::Error)]
#[error("cannot add hooks")]
#[non_exhaustive]
pub struct PipelineError {
    #[source]
    pub failure: PipelineFailure,
    pub report: Report,
}

/// Why hooks could not be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineFailure {
    /// The configuration cannot be used.
    #[error("cannot add hooks to the configuration")]
    Config(#[from] ConfigError),
    /// A hook file cannot be used.
    #[error(transparent)]
    HookFile(#[from] Box<Problem>),
    /// A hook that must be in force is not.
    #[error(transparent)]
    RequiredHook(#[from] RequiredHookError),
    /// A hook cannot be matched.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// Others can change a hook that matches.
    #[error("a hook is writable by non-root users{}", .0.hint_in_message())]
    Trust(#[from] TrustError),
    /// A `precreate` hook does not work.
    #[error(transparent)]
    Filter(#[from] Box<FilterError>),
}

/// Returns an entry for each file that was selected, before anybody changed the selection.
pub(super) fn matched(selection: &Selection<'_>) -> Vec<MatchedHook> {
    let mut injections = selection.injections.iter();
    let files = selection.files.iter().zip(&selection.reasons);
    files
        .map(|(file, reason)| {
            let own = injections.by_ref().take(file.definition.stages.len());
            MatchedHook {
                file: file.path.clone(),
                reason: reason.to_string(),
                stages: own.map(|injection| injection.stage.clone()).collect(),
                rejected: None,
            }
        })
        .collect()
}
