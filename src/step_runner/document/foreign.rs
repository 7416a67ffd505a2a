//! Words of other formats in step files: what to write instead.

use super::types::DEFINITION_KEYS;
use crate::yaml::{Field, Node, Value};

/// Keys that people know from elsewhere, and what a step file has for them.
const WORDS: [(&str, &str); 22] = [
    ("uses", "for a step in a directory, repository or image write `step: ./dir`"),
    ("with", "write `inputs`"),
    ("steps", "write `run`, a list of steps"),
    ("run", "write `script` for commands; `run` is the list of steps of a file"),
    ("args", "write them in `exec.command`, or as `inputs` of a step"),
    ("entrypoint", "write `exec.command`"),
    ("cmd", "write `exec.command`"),
    ("id", "write `name`, by which later steps refer to the outputs"),
    (
        "shell",
        "`script` runs in bash, or in sh where there is none; write `exec.command` for others",
    ),
    ("working-directory", "write `cd` in the script, or `exec.work_dir` in a step file"),
    ("before_script", "write a step before this one"),
    ("after_script", "write a step after this one, with `if: always()`"),
    ("when", "write `if`, for example `if: always()` or `if: failure()`"),
    ("allow_failure", "write `continue_on_error: true`"),
    ("variables", "write `env`"),
    ("environment", "write `env`"),
    ("rules", "write `if` at a step; `rules` belongs to the job in .gitlab-ci.yml"),
    ("image", "it belongs to the job in .gitlab-ci.yml, not to a step"),
    ("stage", "it belongs to the job in .gitlab-ci.yml, not to a step"),
    ("services", "it belongs to the job in .gitlab-ci.yml, not to a step"),
    ("artifacts", "it belongs to the job in .gitlab-ci.yml, not to a step"),
    ("cache", "it belongs to the job in .gitlab-ci.yml, not to a step"),
];

/// Returns what to write in place of a key of another format.
pub(super) fn hint(name: &str) -> Option<String> {
    let word = WORDS.iter().find(|(word, _)| *word == name);
    word.map(|(_, hint)| (*hint).to_owned())
}

/// A format that is not that of step files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignFormat {
    #[error(
        "this is a .gitlab-ci.yml, not a step file: it configures jobs; in a job write `run:` with steps such as \
         `{{name: build, step: ./build}}`, and in ./build/step.yml what the step does"
    )]
    GitLabCi,
    #[error(
        "this is a workflow or action of GitHub, not a step file: write `spec:` with the inputs, a line `---`, and \
         `run:` with steps that have `name` and `script`"
    )]
    GitHub,
}

/// Keys of a whole pipeline.
const PIPELINE: [&str; 8] = [
    "after_script",
    "before_script",
    "default",
    "image",
    "include",
    "stages",
    "variables",
    "workflow",
];

/// Keys of a job.
const JOB: [&str; 5] = ["extends", "script", "stage", "trigger", "before_script"];

/// Returns the other format that a document has, and the key that shows it. Documents of step files have
/// none of these keys.
pub(super) fn format(root: &Node) -> Option<(ForeignFormat, &Field)> {
    let fields = root.fields();
    let has = |name: &str| fields.iter().any(|field| field.name == name);
    let is_workflow = has("jobs") && has("on") || has("runs");
    let is_github = |field: &&Field| matches!(field.name.as_str(), "jobs" | "runs");
    if is_workflow && let Some(field) = fields.iter().find(is_github) {
        return Some((ForeignFormat::GitHub, field));
    }
    let is_job = |field: &Field| {
        let fields = field.node.fields();
        fields.iter().any(|field| {
            JOB.contains(&field.name.as_str())
                && matches!(field.node.value, Value::Text(_) | Value::List(_) | Value::Map(_))
        })
    };
    let is_steps = |name: &str| name == "spec" || DEFINITION_KEYS.contains(&name);
    let mut strange = fields.iter().filter(|field| !is_steps(&field.name));
    let field = strange.find(|field| PIPELINE.contains(&&*field.name) || is_job(field))?;
    Some((ForeignFormat::GitLabCi, field))
}
