//! Events in their printed form.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use oci_hooks::cdi::DeviceRegistry;
use oci_hooks::hooks::monitor::{ChangeKind, DeviceChange, FileChange};
use oci_hooks::hooks::trust::{self, TrustOptions};
use oci_hooks::hooks::{HookDefinition, HookFile, LoadProblem, LoadedHooks};
use serde::Serialize;

use crate::devices::{DeviceContentJson, DeviceJson, problem_diagnostic};
use crate::error::{Diagnostic, HooksCommandError};
use crate::list::HookJson;
use crate::style::{self, Paint};

/// Returns an event as a line of JSON.
pub fn to_line(event: &impl Serialize) -> String {
    serde_json::to_string(event).expect("strings, numbers, and maps with strings as keys")
}

/// The printed form of one change.
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
    #[serde(flatten)]
    access: Option<AccessJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Diagnostic>,
    #[serde(flatten)]
    content: Option<EventContent<'a>>,
}

/// Owner and mode of an altered path.
#[derive(Serialize)]
struct AccessJson {
    uid: u32,
    mode: String,
}

impl AccessJson {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::symlink_metadata(path).ok()?;
        let mode = format!("{:04o}", metadata.mode() & 0o7777);
        Some(AccessJson { uid: metadata.uid(), mode })
    }
}

/// The hook or device in force after a change.
#[derive(Serialize)]
#[serde(untagged)]
enum EventContent<'a> {
    Hook(&'a HookDefinition),
    Device(DeviceContentJson<'a>),
}

/// Combines changes with the definitions and problems of the load that found them.
pub fn combine_changes<'a>(
    changes: &[FileChange],
    loaded: &'a LoadedHooks,
    now: Timestamp,
) -> Vec<EventJson<'a>> {
    let files: HashMap<&Path, &HookFile> =
        loaded.hooks.iter().map(|file| (file.path.as_path(), file)).collect();
    let problems: HashMap<&Path, &LoadProblem> =
        loaded.problems.iter().map(|problem| (problem.path.as_path(), problem)).collect();
    let event = |change: &FileChange| {
        let path = change.path.as_path();
        let mut event = EventJson::new(change.kind.name(), now, None, path);
        match &change.kind {
            ChangeKind::Masked { by } => event.by = Some(to_lossy(by)),
            ChangeKind::Broken { in_force } => {
                // If a directory cannot be listed, each of its files is broken.
                let problem = problems.get(path).or_else(|| problems.get(path.parent()?));
                event.in_force = Some(*in_force);
                event.problem = problem.map(|problem| Diagnostic::of_problem(problem));
            }
            ChangeKind::Added | ChangeKind::Changed | ChangeKind::Restored => {
                event.content = files.get(path).map(|file| EventContent::Hook(&file.definition));
            }
            ChangeKind::Altered => {
                event.access = AccessJson::of(path);
                let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
                let trusted = trust::check_path(&path, &TrustOptions::of_process());
                event.problem = trusted.err().map(|it| HooksCommandError::Trust(it).diagnostic());
            }
            _ => {}
        }
        event
    };
    changes.iter().map(event).collect()
}

/// Combines changes of devices with the registry after the changes.
pub fn combine_device_changes<'a>(
    changes: &[DeviceChange],
    registry: &'a DeviceRegistry,
    now: Timestamp,
) -> Vec<EventJson<'a>> {
    let event = |change: &DeviceChange| {
        let device = change.device.as_deref();
        let mut event = EventJson::new(change.kind.name(), now, device, &change.path);
        if let ChangeKind::Broken { in_force } = change.kind {
            event.in_force = Some(in_force);
        }
        match device.map(|name| registry.get(name)) {
            Some(Ok(entry)) => {
                event.content = Some(EventContent::Device(DeviceContentJson::new(&entry)));
            }
            Some(Err(error)) if event.in_force.is_some() => {
                event.problem = Some(HooksCommandError::Device(error).diagnostic());
            }
            Some(Err(_)) => {}
            None => {
                let problem = registry.problems().iter().find(|it| it.path == change.path);
                event.problem = problem.map(problem_diagnostic);
            }
        }
        event
    };
    changes.iter().map(event).collect()
}

impl<'a> EventJson<'a> {
    fn new(event: &'static str, now: Timestamp, device: Option<&str>, path: &Path) -> Self {
        let file_name = || to_lossy(Path::new(path.file_name().unwrap_or_default()));
        EventJson {
            event,
            time: time(now),
            name: device.map_or_else(file_name, str::to_owned),
            path: to_lossy(path),
            by: None,
            in_force: None,
            access: None,
            problem: None,
            content: None,
        }
    }
}

impl EventJson<'_> {
    /// Returns the human-readable form of the event.
    pub fn format_human(&self, paint: Paint) -> String {
        let style = match self.event {
            "broken" => style::BAD,
            "removed" | "masked" | "altered" => style::WARNING,
            _ => style::GOOD,
        };
        let mut text = match &self.problem {
            Some(problem) if self.access.is_none() => problem.to_string(),
            Some(_) => self.path.clone(),
            // Names of devices contain a slash, and file names do not.
            None if self.name.contains('/') => format!("{}  {}", self.name, self.path),
            None => self.path.clone(),
        };
        if let Some(by) = &self.by {
            text = format!("{text} by {by}");
        }
        if let Some(AccessJson { uid, mode }) = &self.access {
            text = format!("{text} (mode {mode}, user {uid})");
            text = match &self.problem {
                Some(problem) if problem.path.as_deref() == Some(Path::new(&self.path)) => {
                    format!("{text}: {}", problem.message)
                }
                Some(problem) => format!("{text}: {problem}"),
                None => text,
            };
        }
        if self.in_force == Some(true) {
            text = format!("{text}; its previous content stays in force");
        }
        line(paint, &self.time, style, self.event, &text)
    }
}

/// All hooks or devices, directories and problems of a load.
#[derive(Serialize)]
pub struct SnapshotJson<'a> {
    event: &'static str,
    time: String,
    dirs: Vec<DirJson>,
    #[serde(flatten)]
    in_force: InForceJson<'a>,
    problems: Vec<Diagnostic>,
}

#[derive(Serialize)]
struct DirJson {
    path: String,
    exists: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum InForceJson<'a> {
    Hooks(Vec<HookJson<'a>>),
    Devices(Vec<DeviceJson<'a>>),
}

impl<'a> SnapshotJson<'a> {
    pub fn of_hooks(loaded: &'a LoadedHooks, now: Timestamp) -> Self {
        SnapshotJson::new(
            now,
            loaded.dirs.iter().map(|dir| (dir, !loaded.missing_dirs.contains(dir))),
            InForceJson::Hooks(loaded.hooks.iter().map(HookJson::new).collect()),
            loaded.problems.iter().map(Diagnostic::of_problem).collect(),
        )
    }

    pub fn of_devices(dirs: &[PathBuf], registry: &'a DeviceRegistry, now: Timestamp) -> Self {
        let conflicts = registry.conflicts().keys().filter_map(|name| registry.get(name).err());
        let conflicts = conflicts.map(|error| HooksCommandError::Device(error).diagnostic());
        let problems = registry.problems().iter().map(problem_diagnostic);
        SnapshotJson::new(
            now,
            dirs.iter().map(|dir| (dir, dir.exists())),
            InForceJson::Devices(registry.devices().map(|entry| DeviceJson::new(&entry)).collect()),
            problems.chain(conflicts).collect(),
        )
    }

    fn new<'d>(
        now: Timestamp,
        dirs: impl Iterator<Item = (&'d PathBuf, bool)>,
        in_force: InForceJson<'a>,
        problems: Vec<Diagnostic>,
    ) -> Self {
        let dirs = dirs.map(|(path, exists)| DirJson { path: to_lossy(path), exists }).collect();
        SnapshotJson { event: "snapshot", time: time(now), dirs, in_force, problems }
    }

    /// Returns the human-readable lines of the snapshot.
    pub fn format_human(&self, paint: Paint) -> Vec<String> {
        let line = |style, word, text: &str| line(paint, &self.time, style, word, text);
        let dirs = self.dirs.iter().map(|dir| match dir.exists {
            true => line(style::TITLE, "watching", &dir.path),
            false => line(style::TITLE, "awaiting", &dir.path),
        });
        let mut lines: Vec<_> = dirs.collect();
        let mut in_force = |text: &str| lines.push(line(style::GOOD, "in force", text));
        match &self.in_force {
            InForceJson::Hooks(hooks) => hooks.iter().for_each(|hook| in_force(&hook.path)),
            InForceJson::Devices(devices) => {
                for device in devices {
                    in_force(&format!("{}  {}", device.name, device.path));
                }
            }
        }
        lines.extend(self.problems.iter().map(|it| line(style::BAD, "problem", &it.to_string())));
        lines
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

fn to_lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
