//! Events as they are printed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use oci_hooks::hooks::monitor::{Change, ChangeKind};
use oci_hooks::hooks::{Definition, HookFile, Loaded, Problem};
use serde::{Serialize, Serializer};

use crate::error::Diagnostic;
use crate::list::HookJson;
use crate::style::{self, Paint};

/// Returns an event as a line of JSON.
pub fn to_line(event: &impl Serialize) -> String {
    serde_json::to_string(event).expect("strings, numbers, and maps with strings as keys")
}

/// What one change is printed as.
#[derive(Serialize)]
pub struct EventJson<'a> {
    pub event: &'static str,
    time: String,
    name: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_force: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "problem")]
    problem: Option<Diagnostic>,
    #[serde(flatten)]
    definition: Option<&'a Definition>,
}

/// Puts changes together with what the load they come from says about their files.
pub fn of_changes<'a>(
    changes: &[Change],
    loaded: &'a Loaded,
    now: Timestamp,
) -> Vec<EventJson<'a>> {
    let files: HashMap<&Path, &HookFile> =
        loaded.hooks.iter().map(|file| (file.path.as_path(), file)).collect();
    let problems: HashMap<&Path, &Problem> =
        loaded.problems.iter().map(|problem| (problem.path.as_path(), problem)).collect();
    let event = |change: &Change| {
        let path = change.path.as_path();
        let mut event = EventJson {
            event: change.kind.name(),
            time: time(now),
            name: lossy(Path::new(path.file_name().unwrap_or_default())),
            path: lossy(path),
            by: None,
            in_force: None,
            problem: None,
            definition: None,
        };
        match &change.kind {
            ChangeKind::Masked { by } => event.by = Some(lossy(by)),
            ChangeKind::Broken { in_force } => {
                // Of a directory that cannot be listed, each file is broken.
                let problem = problems.get(path).or_else(|| problems.get(path.parent()?));
                event.in_force = Some(*in_force);
                event.problem = problem.map(|problem| Diagnostic::of_problem(problem));
            }
            ChangeKind::Added | ChangeKind::Changed | ChangeKind::Restored => {
                event.definition = files.get(path).map(|file| &file.definition);
            }
            _ => {}
        }
        event
    };
    changes.iter().map(event).collect()
}

impl EventJson<'_> {
    /// Returns the event for people.
    pub fn human(&self, paint: Paint) -> String {
        let style = match self.event {
            "broken" => style::BAD,
            "removed" | "masked" => style::WARNING,
            _ => style::GOOD,
        };
        let mut text = match &self.problem {
            Some(problem) => problem.to_string(),
            None => self.path.clone(),
        };
        if let Some(by) = &self.by {
            text = format!("{text} by {by}");
        }
        if self.in_force == Some(true) {
            text = format!("{text}; what it said before stays in force");
        }
        line(paint, &self.time, style, self.event, &text)
    }
}

/// All hooks, directories and problems of a load.
#[derive(Serialize)]
pub struct SnapshotJson<'a> {
    event: &'static str,
    time: String,
    dirs: Vec<Dir>,
    hooks: Vec<HookJson<'a>>,
    #[serde(serialize_with = "problems")]
    problems: Vec<Diagnostic>,
}

#[derive(Serialize)]
struct Dir {
    path: String,
    exists: bool,
}

impl<'a> SnapshotJson<'a> {
    pub fn new(loaded: &'a Loaded, now: Timestamp) -> Self {
        let dir =
            |path: &PathBuf| Dir { path: lossy(path), exists: !loaded.missing_dirs.contains(path) };
        SnapshotJson {
            event: "snapshot",
            time: time(now),
            dirs: loaded.dirs.iter().map(dir).collect(),
            hooks: loaded.hooks.iter().map(HookJson::new).collect(),
            problems: loaded.problems.iter().map(Diagnostic::of_problem).collect(),
        }
    }

    /// Returns the snapshot for people, line by line.
    pub fn human(&self, paint: Paint) -> impl Iterator<Item = String> {
        let line = move |style, word, text: &str| line(paint, &self.time, style, word, text);
        let dirs = self.dirs.iter().map(move |dir| match dir.exists {
            true => line(style::TITLE, "watching", &dir.path),
            false => line(style::TITLE, "awaiting", &dir.path),
        });
        let hooks = self.hooks.iter().map(move |hook| line(style::GOOD, "in force", &hook.path));
        let problems =
            self.problems.iter().map(move |it| line(style::BAD, "problem", &it.to_string()));
        dirs.chain(hooks).chain(problems)
    }
}

fn line(paint: Paint, time: &str, style: anstyle::Style, word: &str, text: &str) -> String {
    let time = paint.paint(style::FAINT, time);
    let word = paint.paint(style, format_args!("{word:<8}"));
    format!("{time} {word} {text}")
}

fn time(time: Timestamp) -> String {
    format!("{time:.3}")
}

fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn problem<S: Serializer>(problem: &Option<Diagnostic>, serializer: S) -> Result<S::Ok, S::Error> {
    problem.as_ref().map(|problem| problem.json(None)).serialize(serializer)
}

fn problems<S: Serializer>(problems: &[Diagnostic], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(problems.iter().map(|problem| problem.json(None)))
}
