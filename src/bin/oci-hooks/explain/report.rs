//! The results of `explain`, as printed by `--format json`.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use oci_hooks::hooks::lint::{self, HookFinding, LintOptions, Severity};
use oci_hooks::hooks::{
    Consumer, EntryState, HookError, HookStage, LoadProblem, LoadedEntry, LoadedHooks, MatchTarget,
    OciStage, TargetCommand,
};
use oci_hooks::json::TextLocation;
use oci_hooks_files::fs::read_bounded;
use serde::Serialize;

use super::human::is_own_limit;
use super::is_named;
use super::origin::ConfigHook;
use crate::container::{ContainerConfig, ContainerEngine, ContainerRules, EngineContainer};
use crate::directories::{DirsSourceJson, HookDirectories, UnreadDirReport};
use crate::error::Diagnostic;

/// The outcome for each entry of each hook directory for a container.
#[derive(Serialize)]
pub struct ExplainReport {
    pub consumer: &'static str,
    /// The container; null unless the argument names a container of an engine.
    pub container: Option<ContainerReport>,
    pub target: TargetJson,
    pub directories: Vec<DirectoryReport>,
    /// Source of the directories; null with --hooks-dir.
    pub source: Option<DirsSourceJson>,
    /// Directories with hook files that the consumer does not read.
    pub unread: Vec<UnreadDirReport>,
    /// Devices that annotations request from CDI.
    pub cdi: Vec<CdiRequest>,
    /// The reason why the consumer injects no hook into this container, whatever the hooks are;
    /// null if it injects matching hooks.
    pub exempt: Option<String>,
    /// The error that prevents the consumer from working; null if there is none.
    pub fatal: Option<Diagnostic>,
    /// The hooks that the configuration has already.
    pub hooks: Vec<ConfigHook>,
}

/// A container, and the source of each fact about it.
#[derive(Serialize)]
pub struct ContainerReport {
    engine: ContainerEngine,
    id: String,
    name: String,
    state: Option<String>,
    pub facts: Vec<ContainerFact>,
}

/// A fact and its source.
#[derive(Serialize)]
pub struct ContainerFact {
    pub fact: &'static str,
    pub value: String,
    pub source: String,
}

impl ContainerReport {
    pub fn new(
        container: &EngineContainer,
        rules: &ContainerRules,
        directories: &HookDirectories,
        (has_bind_mounts, mounts_by): (bool, &str),
    ) -> Self {
        let EngineContainer { engine, id, name, state, source, config, .. } = container;
        let mut named = format!("{} {name}", engine.name());
        if let Some(state) = state {
            named += &format!(", {state}");
        }
        let (path, config_by) = match config {
            ContainerConfig::File { path, by } => (path.display().to_string(), by.as_str()),
            ContainerConfig::Text { by, .. } => ("does not exist now".to_owned(), by.as_str()),
        };
        let dirs: Vec<_> = directories.dirs.iter().map(|dir| dir.display().to_string()).collect();
        let dirs = if dirs.is_empty() { "none".to_owned() } else { dirs.join(", ") };
        let dirs_by = match &directories.configured {
            Some(configured) => configured.source.to_string(),
            None => "--hooks-dir".to_owned(),
        };
        let mounts = if has_bind_mounts { "yes" } else { "no" };
        let facts = [
            ("container", named, source.as_str()),
            ("config.json", path, config_by),
            ("consumer", rules.consumer.name.to_owned(), rules.by.as_str()),
            ("hook directories", dirs, dirs_by.as_str()),
            ("bind mounts", mounts.to_owned(), mounts_by),
        ];
        let facts = facts.map(|(fact, value, source)| ContainerFact {
            fact,
            value,
            source: source.to_owned(),
        });
        ContainerReport {
            engine: *engine,
            id: id.clone(),
            name: name.clone(),
            state: state.clone(),
            facts: facts.into(),
        }
    }
}

/// The values that hooks are matched against.
#[derive(Serialize)]
pub struct TargetJson {
    /// `process.args[0]`; null if there is none.
    pub command: Option<String>,
    pub annotations: BTreeMap<String, String>,
    pub has_bind_mounts: bool,
    /// Destinations of mounts that the user may have requested. Empty if another mount certainly is the user's, or if
    /// no hook depends on bind mounts.
    pub unclear_mounts: Vec<String>,
    /// Set if a hook depends on annotations, and the engine may have annotations that `config.json`
    /// lacks.
    pub unclear_annotations: bool,
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
    /// Position among the hooks that are injected, from 1; null if the hook is not injected.
    pub order: Option<usize>,
    /// Stages at which the hook is injected.
    pub stages: Vec<String>,
    /// The conditions of the file in the order of evaluation, each with the container's value.
    pub conditions: Vec<ConditionReport>,
    /// The deciding condition, or why none was evaluated.
    pub reason: String,
    pub problem: Option<Diagnostic>,
    /// Other findings of `lint` about the file, without notes.
    pub findings: Vec<FindingJson>,
}

/// The outcome for a hook file; the names are JSON values.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileState {
    Injected,
    NotMatched,
    /// A condition cannot be evaluated, so no hook is injected and the container does not start.
    MatchError,
    Masked,
    Broken,
    /// The hook's program does not exist, so the consumer silently skips the file.
    NoProgram,
    /// The file's name does not end in `.json`.
    Ignored,
}

#[derive(Serialize)]
pub struct ConditionReport {
    pub holds: bool,
    pub text: String,
}

impl ExplainReport {
    /// Explains the files whose names pass `wants`.
    pub fn new(
        loaded: &LoadedHooks,
        target: &MatchTarget,
        consumer: &Consumer,
        wants: impl Fn(&str) -> bool,
    ) -> Self {
        let mut active = active_files(loaded, target, consumer);
        let problems: PathProblems<'_> =
            loaded.problems.iter().map(|problem| (problem.path.as_path(), problem)).collect();
        let directories = loaded.dirs.iter().map(|dir| {
            let entries = loaded.entries.iter().filter(|entry| entry.path.parent() == Some(dir));
            let files = entries
                // Subdirectories of hook directories are not read.
                .filter(|entry| entry.state != EntryState::NotJson || !entry.path.is_dir())
                .map(|entry| {
                    active
                        .remove(entry.path.as_path())
                        .unwrap_or_else(|| explain_unused(entry, &problems))
                })
                .filter(|file| wants(&file.name))
                .collect();
            DirectoryReport {
                exists: !loaded.missing_dirs.contains(dir),
                path: dir.to_string_lossy().into_owned(),
                files,
            }
        });
        ExplainReport {
            consumer: consumer.name,
            container: None,
            target: TargetJson {
                command: match &target.command {
                    TargetCommand::Program(program) => Some(program.clone()),
                    _ => None,
                },
                annotations: target.annotations.clone(),
                has_bind_mounts: target.has_bind_mounts,
                unclear_mounts: Vec::new(),
                unclear_annotations: false,
            },
            directories: directories.collect(),
            source: None,
            unread: Vec::new(),
            cdi: device_requests(&target.annotations),
            exempt: None,
            fatal: first_fatal(loaded).map(Diagnostic::of_problem),
            hooks: Vec::new(),
        }
    }

    /// Marks all hooks as not injected, for one reason.
    pub fn exempt_hooks(&mut self, reason: String) {
        for file in self.directories.iter_mut().flat_map(|dir| &mut dir.files) {
            if matches!(file.state, FileState::Injected | FileState::MatchError) {
                file.state = FileState::NotMatched;
                file.order = None;
                file.reason.clone_from(&reason);
            }
        }
        self.exempt = Some(reason);
    }

    /// Adds the findings of `lint` about files that are read and not masked.
    pub fn add_findings(&mut self, consumer: &Consumer) {
        for file in self.directories.iter_mut().flat_map(|dir| &mut dir.files) {
            if !matches!(file.state, FileState::Ignored | FileState::Masked) {
                let known = file.problem.as_ref().and_then(|problem| problem.location.as_ref());
                file.findings = findings_of(Path::new(&file.path), consumer, known);
            }
        }
    }

    /// Adds the source of the directories, and the unread hook files whose names pass `wants`.
    pub fn add_directories(&mut self, directories: &HookDirectories, wants: impl Fn(&str) -> bool) {
        self.source = directories.source_json();
        self.unread.clone_from(&directories.unread);
        for dir in &mut self.unread {
            dir.files.retain(|name| wants(name));
        }
        self.unread.retain(|dir| !dir.files.is_empty());
    }

    /// Returns the names of the devices that annotations request.
    pub fn requested_devices(&self) -> impl Iterator<Item = &str> {
        self.cdi.iter().flat_map(|request| &request.devices).map(String::as_str)
    }

    /// Returns whether a directory, read or not, has the hook file.
    pub fn has_file(&self, name: &OsStr) -> bool {
        let unread = self.unread.iter().flat_map(|dir| &dir.files);
        let mut names = self.files().map(|file| &file.name).chain(unread);
        names.any(|file| is_named(file, name))
    }

    pub fn files(&self) -> impl Iterator<Item = &FileReport> {
        self.directories.iter().flat_map(|dir| &dir.files)
    }

    /// Returns whether `oci-hooks-runtime` or `oci-hooks-nri` adds the hooks. Both read hook files like this program.
    pub fn is_injected_by_us(&self) -> bool {
        let engine = self.container.as_ref().map(|container| container.engine);
        matches!(engine, Some(ContainerEngine::Docker | ContainerEngine::Containerd))
    }

    /// Returns whether any of the files would be injected.
    pub fn injects_any(&self) -> bool {
        let blocked =
            self.fatal.is_some() || self.files().any(|f| f.state == FileState::MatchError);
        !blocked && self.files().any(|file| file.state == FileState::Injected)
    }
}

/// Explains the hooks in force, by path.
fn active_files<'l>(
    loaded: &'l LoadedHooks,
    target: &'l MatchTarget,
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
                .map(|reason| ConditionReport { holds: reason.holds(), text: reason.to_string() })
                .collect(),
            ..FileReport::of_path(&file.path, reason)
        };
        (file.path.as_path(), explained)
    });
    files.collect()
}

/// Load errors by the path of the hook file.
type PathProblems<'l> = HashMap<&'l Path, &'l LoadProblem>;

/// Returns the first problem that stops the consumer: if possible, one that is not only this program's limit.
pub fn first_fatal(loaded: &LoadedHooks) -> Option<&LoadProblem> {
    let mut fatal = loaded.problems.iter().filter(|problem| problem.fatal);
    let first = fatal.clone().next();
    fatal.find(|problem| !is_own_limit(problem.source.class())).or(first)
}

/// Explains an entry that is not a hook in force.
fn explain_unused(entry: &LoadedEntry, problems: &PathProblems<'_>) -> FileReport {
    let problem = problems.get(entry.path.as_path()).copied();
    let (state, reason) = match &entry.state {
        EntryState::Masked { by } => (FileState::Masked, format!("masked by {}", by.display())),
        EntryState::NotJson => (FileState::Ignored, "its name does not end in .json".to_owned()),
        EntryState::Vanished => {
            let target = fs::read_link(&entry.path);
            let reason = target.map_or_else(
                |_| "it was removed just now".to_owned(),
                |target| format!("it links to {}, which does not exist", target.display()),
            );
            return FileReport::of_path(&entry.path, reason);
        }
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

/// Returns the stage at which a hook is injected.
fn injected_at(stage: &HookStage, consumer: &Consumer) -> String {
    match stage {
        HookStage::Oci(OciStage::Prestart) => consumer.prestart.name().to_owned(),
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
    pub hint: Option<String>,
}

impl FindingJson {
    fn new(finding: &HookFinding) -> Self {
        let location = finding.location.as_ref();
        FindingJson {
            code: finding.rule.code,
            rule: finding.rule.name,
            severity: finding.severity.name(),
            line: location.map(|at| at.line),
            column: location.map(|at| at.column),
            message: finding.message.clone(),
            hint: finding.hint.clone(),
        }
    }

    /// Returns the position as ` at 3:5`, or an empty string if it is unknown.
    pub fn position_suffix(&self) -> String {
        match (self.line, self.column) {
            (Some(line), Some(column)) => format!(" at {line}:{column}"),
            _ => String::new(),
        }
    }
}

/// Size limit of the hook files that `explain` lints. Larger files are hardly written by hand; `lint` checks them.
const MAX_BYTES: u64 = 64 << 10;

/// Returns the errors and warnings about the text of a file. Findings at `known`, the position of
/// the file's load error, are left out.
fn findings_of(path: &Path, consumer: &Consumer, known: Option<&TextLocation>) -> Vec<FindingJson> {
    let Ok(text) = read_bounded(path, MAX_BYTES) else { return Vec::new() };
    let mut options = LintOptions::for_consumer(consumer);
    options.others.clear();
    let findings = lint::lint_text(path, &text, &options);
    let is_new = |finding: &&HookFinding| {
        let location = finding.location.as_ref();
        let is_known = known.is_some_and(|known| {
            location.is_some_and(|at| (at.line, at.column) == (known.line, known.column))
        });
        finding.severity > Severity::Note && !is_known
    };
    findings.iter().filter(is_new).map(FindingJson::new).collect()
}

/// Prefix of annotations for CDI; the rest of the key is arbitrary.
const PREFIX: &str = "cdi.k8s.io/";

/// An annotation that requests CDI devices. CRI-O and containerd add these devices to the container, with the hooks
/// of their specifications.
#[derive(Serialize)]
pub struct CdiRequest {
    pub annotation: String,
    /// Fully qualified names, as `nvidia.com/gpu=all`.
    pub devices: Vec<String>,
}

/// Finds the annotations that request devices.
fn device_requests(annotations: &BTreeMap<String, String>) -> Vec<CdiRequest> {
    let requests = annotations.iter().filter(|(key, _)| key.starts_with(PREFIX));
    let requests = requests.map(|(key, value)| CdiRequest {
        annotation: key.clone(),
        devices: value.split(',').map(|device| device.trim().to_owned()).collect(),
    });
    requests.collect()
}
