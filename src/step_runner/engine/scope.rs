//! The scope of a step: its environment, and the names in its expressions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::Value;
use super::super::expression::{Context, Expanded, ExpressionError, expand_text};

/// The environment in layers of increasing precedence: the job's environment, variables exported by
/// steps, variables declared in step files.
#[derive(Clone, Debug, Default)]
pub(super) struct Layers {
    /// Variables declared in step files; nested steps override their callers.
    pub(super) declared: BTreeMap<String, String>,
}

impl Layers {
    /// Returns the merged environment.
    pub(super) fn environment(
        &self,
        job: &BTreeMap<String, String>,
        exports: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let mut all = job.clone();
        for layer in [exports, &self.declared] {
            all.extend(layer.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        all
    }

    /// Returns the layers with more declared variables.
    pub(super) fn with(&self, more: &BTreeMap<String, String>) -> Self {
        let mut layers = self.clone();
        layers.declared.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        layers
    }
}

/// The scope of a running step.
pub(super) struct Scope {
    pub(super) layers: Layers,
    pub(super) context: Context,
    /// Directory of the step file.
    pub(super) dir: PathBuf,
    /// The fetched repository or image that the step file is from.
    pub(super) tree: Option<PathBuf>,
    /// Nesting depth, from 0 for the job.
    pub(super) depth: usize,
}

impl Scope {
    pub(super) fn new(dir: &Path, work_dir: &Path, vars: &BTreeMap<String, String>) -> Self {
        let context = Context {
            vars: vars.clone(),
            step_dir: dir.to_string_lossy().into_owned(),
            work_dir: work_dir.to_string_lossy().into_owned(),
            ..Context::default()
        };
        Scope { layers: Layers::default(), context, dir: dir.to_path_buf(), tree: None, depth: 0 }
    }
}

/// Expands the values of environment variables, independently of each other.
pub(super) fn expand_env<E>(
    env: &BTreeMap<String, String>,
    context: &Context,
    error: impl Fn(String, ExpressionError) -> E,
) -> Result<BTreeMap<String, String>, E> {
    let expand = |(name, text): (&String, &String)| match expand_text(text, context) {
        Ok((value, _)) => Ok((name.clone(), value)),
        Err(reason) => Err(error(name.clone(), reason)),
    };
    env.iter().map(expand).collect()
}

/// Returns a value, marked with the name of a secret if it is sensitive.
pub(super) fn secret(value: Value, is_sensitive: bool, name: impl FnOnce() -> String) -> Expanded {
    let mut value = Expanded::from(value);
    if is_sensitive {
        value.secrets.insert(name());
    }
    value
}
