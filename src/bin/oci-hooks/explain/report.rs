//! The results of `explain`, as printed by `--format json`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use oci_hooks::hooks::lint::{self, Finding, LintOptions, Severity};
use oci_hooks::hooks::{
    Command, Consumer, Entry, EntryState, HookError, Loaded, OciStage, Problem, Stage, Target,
};
use oci_hooks::json::Location;
use oci_hooks::sys::fs::read_bounded;
use serde::Serialize;

use crate::directories::{Directories, SourceJson, Unread};
use crate::error::Diagnostic;

/// What happens to each entry of each hook directory for a container.
#[derive(Serialize)]
pub struct Report {
    pub consumer: &'static str,
    pub target: TargetJson,
    pub directories: Vec<DirectoryReport>,
    /// What decided on the directories; null if --hooks-dir did.
    pub source: Option<SourceJson>,
    /// Directories with hook files that the consumer does not read.
    pub unread: Vec<Unread>,
    /// What annotations ask of CDI.
    pub cdi: Vec<CdiRequest>,
    /// The error that prevents the consumer from working.
    pub fatal: Option<Diagnostic>,
}

/// What hooks are matched against.
#[derive(Serialize)]
pub struct TargetJson {
    /// `process.args[0]`; null if there is none.
    pub command: Option<String>,
    pub annotations: BTreeMap<String, String>,
    pub has_bind_mounts: bool,
}

#[derive(Serialize)]
pub struct DirectoryReport {
    pub path: String,
    pub exists: bool,
    pub files: Vec<FileReport>,
}

#[derive(Serialize)]
pub struct FileReport {
    pub name: String,
    pub path: String,
    pub state: FileState,
    /// Position among the hooks that are injected, from 1.
    pub order: Option<usize>,
    /// Stages at which the hook is injected.
    pub stages: Vec<String>,
    /// The conditions of the file in the order of evaluation, each with the container's value.
    pub conditions: Vec<Condition>,
    /// The deciding condition, or why none was evaluated.
    pub reason: String,
    pub problem: Option<Diagnostic>,
    /// What `lint` says of the file besides, without notes.
    pub findings: Vec<FindingJson>,
}

/// What happens to a hook file; the words are JSON values.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileState {
    Injected,
    NotMatched,
    /// A condition cannot be evaluated, so no hook is injected and the container does not start.
    MatchError,
    Masked,
    Broken,
    /// Its program does not exist, so the consumer silently skips it.
    NoProgram,
    /// Its name does not end in `.json`.
    Ignored,
}

#[derive(Serialize)]
pub struct Condition {
    pub holds: bool,
    pub text: String,
}

impl Report {
    /// Explains the files whose names are wanted.
    pub fn new(
        loaded: &Loaded,
        target: &Target,
        consumer: &Consumer,
        wants: impl Fn(&str) -> bool,
    ) -> Self {
        let mut active = active_files(loaded, target, consumer);
        let problems: Problems<'_> =
            loaded.problems.iter().map(|problem| (problem.path.as_path(), problem)).collect();
        let directories = loaded.dirs.iter().map(|dir| {
            let entries = loaded.entries.iter().filter(|entry| entry.path.parent() == Some(dir));
            let files = entries
                // Hook directories are read without those in them.
                .filter(|entry| entry.state != EntryState::NotJson || !entry.path.is_dir())
                .map(|entry| {
                    active.remove(entry.path.as_path()).unwrap_or_else(|| unused(entry, &problems))
                })
                .filter(|file| wants(&file.name))
                .collect();
            DirectoryReport {
                exists: !loaded.missing_dirs.contains(dir),
                path: dir.to_string_lossy().into_owned(),
                files,
            }
        });
        Report {
            consumer: consumer.name,
            target: TargetJson {
                command: match &target.command {
                    Command::Program(program) => Some(program.clone()),
                    _ => None,
                },
                annotations: target.annotations.clone(),
                has_bind_mounts: target.has_bind_mounts,
            },
            directories: directories.collect(),
            source: None,
            unread: Vec::new(),
            cdi: device_requests(&target.annotations),
            fatal: loaded.problems.iter().find(|problem| problem.fatal).map(Diagnostic::of_problem),
        }
    }

    /// Adds what lint finds in the files that are read and not masked.
    pub fn add_findings(&mut self, consumer: &Consumer) {
        for file in self.directories.iter_mut().flat_map(|dir| &mut dir.files) {
            if !matches!(file.state, FileState::Ignored | FileState::Masked) {
                let known = file.problem.as_ref().and_then(|problem| problem.location.as_ref());
                file.findings = findings_of(Path::new(&file.path), consumer, known);
            }
        }
    }

    /// Adds what decided on the directories, and hook files elsewhere whose names are wanted.
    pub fn add_directories(&mut self, directories: &Directories, wants: impl Fn(&str) -> bool) {
        self.source = directories.source_json();
        self.unread.clone_from(&directories.unread);
        for dir in &mut self.unread {
            dir.files.retain(|name| wants(name));
        }
        self.unread.retain(|dir| !dir.files.is_empty());
    }

    pub fn files(&self) -> impl Iterator<Item = &FileReport> {
        self.directories.iter().flat_map(|dir| &dir.files)
    }

    /// Returns whether any of the files would be injected.
    pub fn injects(&self) -> bool {
        let blocked =
            self.fatal.is_some() || self.files().any(|f| f.state == FileState::MatchError);
        !blocked && self.files().any(|file| file.state == FileState::Injected)
    }
}

/// Explains the hooks in force, by path.
fn active_files<'l>(
    loaded: &'l Loaded,
    target: &'l Target,
    consumer: &Consumer,
) -> HashMap<&'l Path, FileReport> {
    let mut order = 0;
    let verdicts = loaded.hooks.evaluate(target);
    let files = verdicts.map(|verdict| {
        let file = verdict.file;
        let when = &file.definition.when;
        let conditions = when.conditions(target).filter_map(Result::ok);
        let (state, reason) = match verdict.outcome {
            Ok(outcome) if outcome.matched => (FileState::Injected, outcome.reason.to_string()),
            Ok(outcome) => (FileState::NotMatched, outcome.reason.to_string()),
            Err(error) => (FileState::MatchError, error.to_string()),
        };
        let injected = state == FileState::Injected;
        order += usize::from(injected);
        let explained = FileReport {
            state,
            order: injected.then_some(order),
            stages: file.definition.stages.iter().map(|s| injected_at(s, consumer)).collect(),
            conditions: conditions
                .map(|reason| Condition { holds: reason.holds(), text: reason.to_string() })
                .collect(),
            ..FileReport::of_path(&file.path, reason)
        };
        (file.path.as_path(), explained)
    });
    files.collect()
}

/// Load errors by the path of the hook file.
type Problems<'l> = HashMap<&'l Path, &'l Problem>;

/// Explains an entry that is not a hook in force.
fn unused(entry: &Entry, problems: &Problems<'_>) -> FileReport {
    let problem = problems.get(entry.path.as_path()).copied();
    let (state, reason) = match &entry.state {
        EntryState::Masked { by } => (FileState::Masked, format!("masked by {}", by.display())),
        EntryState::NotJson => (FileState::Ignored, "its name does not end in .json".to_owned()),
        _ => {
            let missing =
                matches!(problem, Some(p) if matches!(p.source, HookError::PathMissing { .. }));
            let message = problem.map_or_else(String::new, |p| Diagnostic::of_problem(p).message);
            (if missing { FileState::NoProgram } else { FileState::Broken }, message)
        }
    };
    FileReport {
        state,
        problem: problem.map(Diagnostic::of_problem),
        ..FileReport::of_path(&entry.path, reason)
    }
}

impl FileReport {
    fn of_path(path: &Path, reason: String) -> Self {
        FileReport {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            path: path.to_string_lossy().into_owned(),
            state: FileState::Ignored,
            order: None,
            stages: Vec::new(),
            conditions: Vec::new(),
            reason,
            problem: None,
            findings: Vec::new(),
        }
    }
}

/// Names the stage a hook is injected at.
fn injected_at(stage: &Stage, consumer: &Consumer) -> String {
    match stage {
        Stage::Oci(OciStage::Prestart) => consumer.prestart.name().to_owned(),
        stage => stage.name().to_owned(),
    }
}

/// A finding about the text of a file.
#[derive(Serialize)]
pub struct FindingJson {
    pub code: &'static str,
    rule: &'static str,
    severity: &'static str,
    line: Option<usize>,
    column: Option<usize>,
    pub message: String,
    pub help: Option<String>,
}

impl FindingJson {
    fn new(finding: &Finding) -> Self {
        let location = finding.location.as_ref();
        FindingJson {
            code: finding.rule.code,
            rule: finding.rule.name,
            severity: finding.severity.name(),
            line: location.map(|at| at.line),
            column: location.map(|at| at.column),
            message: finding.message.clone(),
            help: finding.help.clone(),
        }
    }

    /// Returns where it is, as ` at 3:5`.
    pub fn at(&self) -> String {
        match (self.line, self.column) {
            (Some(line), Some(column)) => format!(" at {line}:{column}"),
            _ => String::new(),
        }
    }
}

/// No longer file is written by hand; what is wrong with one that is, `lint` says.
const MAX_BYTES: u64 = 64 << 10;

/// Returns the errors and warnings about the text of a file, but not what is known of it already.
fn findings_of(path: &Path, consumer: &Consumer, known: Option<&Location>) -> Vec<FindingJson> {
    let Ok(text) = read_bounded(path, MAX_BYTES) else { return Vec::new() };
    let mut options = LintOptions::for_consumer(consumer);
    options.others.clear();
    let findings = lint::lint_text(path, &text, &options);
    let is_new = |finding: &&Finding| {
        let location = finding.location.as_ref();
        let is_known = known.is_some_and(|known| {
            location.is_some_and(|at| (at.line, at.column) == (known.line, known.column))
        });
        finding.severity > Severity::Note && !is_known
    };
    findings.iter().filter(is_new).map(FindingJson::new).collect()
}

/// What annotations for CDI begin with; the rest of the key is up to whoever writes it.
const PREFIX: &str = "cdi.k8s.io/";

/// An annotation that names devices, which CRI-O and containerd add to the container, with CDI's own
/// hooks.
#[derive(Serialize)]
pub struct CdiRequest {
    pub annotation: String,
    /// Fully qualified names, as `nvidia.com/gpu=all`.
    pub devices: Vec<String>,
}

/// Finds the annotations that ask for devices.
fn device_requests(annotations: &BTreeMap<String, String>) -> Vec<CdiRequest> {
    let requests = annotations.iter().filter(|(key, _)| key.starts_with(PREFIX));
    let requests = requests.map(|(key, value)| CdiRequest {
        annotation: key.clone(),
        devices: value.split(',').map(|device| device.trim().to_owned()).collect(),
    });
    requests.collect()
}
