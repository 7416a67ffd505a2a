//! What a step sees: its environment, and the names in its expressions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::Value;
use super::super::expression::{Context, Expanded, ExpressionError, expand_text};

/// The environment as layers: each wins over those before it, and what steps export comes between
/// the job's environment and what the step files say.
#[derive(Clone, Debug, Default)]
pub(super) struct Layers {
    /// What the step files say, from the outermost in.
    pub(super) said: BTreeMap<String, String>,
}

impl Layers {
    /// Returns the environment, given what the job has and what steps exported until now.
    pub(super) fn environment(
        &self,
        job: &BTreeMap<String, String>,
        exports: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let mut all = job.clone();
        for layer in [exports, &self.said] {
            all.extend(layer.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        all
    }

    /// Returns the layers with these on top.
    pub(super) fn with(&self, more: &BTreeMap<String, String>) -> Self {
        let mut layers = self.clone();
        layers.said.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        layers
    }
}

/// A step that runs.
pub(super) struct Scope {
    pub(super) layers: Layers,
    pub(super) context: Context,
    /// Where its step file is.
    pub(super) dir: PathBuf,
    /// How many steps it is in.
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
        Scope { layers: Layers::default(), context, dir: dir.to_path_buf(), depth: 0 }
    }
}

/// Replaces the expressions in the values of variables; none sees another's.
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

/// Returns a value that is a secret of this name, if it is said to be one.
pub(super) fn secret(value: Value, is_sensitive: bool, name: impl FnOnce() -> String) -> Expanded {
    let mut value = Expanded::from(value);
    if is_sensitive {
        value.secrets.insert(name());
    }
    value
}
