//! Hooks that must not be missing.

use std::path::{Path, PathBuf};

use crate::hooks::{HookError, Loaded, Problem};

/// What becomes of a hook file whose program does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingProgram {
    /// The file is left out, and one of the same name in a directory before its own stays in force, as
    /// with podman and CRI-O: [`Report::problems`](super::Report::problems) names it.
    #[default]
    Drop,
    /// It is an error for every container.
    Fail,
}

impl MissingProgram {
    pub(crate) fn rejects(self, problem: &Problem) -> bool {
        self == MissingProgram::Fail && matches!(problem.source, HookError::PathMissing { .. })
    }
}

/// A required hook that is not in force.
#[derive(Debug, thiserror::Error)]
#[error("required hook {hook:?} {}", match problem {
    Some(_) => "is not in force".to_owned(),
    None => format!("not found in {}", listed(dirs)),
})]
#[non_exhaustive]
pub struct RequiredHookError {
    /// As it is required.
    pub hook: PathBuf,
    /// What is wrong with its file, if there is one.
    #[source]
    pub problem: Option<Box<Problem>>,
    /// The directories that were read.
    pub dirs: Vec<PathBuf>,
}

pub(crate) fn listed(dirs: &[PathBuf]) -> String {
    let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    if dirs.is_empty() { "no directory".to_owned() } else { dirs.join(", ") }
}

/// Returns an error for the first required hook that is not in force, with the problem that it has.
pub(super) fn check(required: &[PathBuf], loaded: &mut Loaded) -> Result<(), RequiredHookError> {
    let Some((hook, at)) = missing(required, loaded) else { return Ok(()) };
    let problem = at.map(|at| Box::new(loaded.problems.remove(at)));
    Err(RequiredHookError { hook: hook.to_owned(), problem, dirs: loaded.dirs.clone() })
}

/// Finds the first required hook that is not in force, and where among the problems its own is.
pub(crate) fn missing<'r>(
    required: &'r [PathBuf],
    loaded: &Loaded,
) -> Option<(&'r Path, Option<usize>)> {
    let is_in_force = |hook: &Path| match is_name(hook) {
        true => loaded.hooks.get(hook.as_os_str()).is_some(),
        false => loaded.hooks.iter().any(|file| file.path == *hook),
    };
    let hook = required.iter().find(|hook| !is_in_force(hook))?;
    let is_about = |problem: &Problem| match is_name(hook) {
        true => problem.path.file_name() == Some(hook.as_os_str()),
        false => problem.path == *hook,
    };
    Some((hook, loaded.problems.iter().rposition(is_about)))
}

fn is_name(hook: &Path) -> bool {
    !hook.as_os_str().as_encoded_bytes().contains(&b'/')
}
