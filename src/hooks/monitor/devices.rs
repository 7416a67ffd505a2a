//! Following the directories of CDI specifications.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks_files::error::chain;

use super::follow::MonitorOptions;
use super::trigger::LoadTrigger;
use super::{ChangeKind, MonitorError};
use crate::cdi::{DeviceEntry, DeviceProblem, DeviceRegistry, is_spec_name};

/// Follows the directories of CDI specifications, as [`Monitor`](super::Monitor) follows hook directories.
///
/// For event loops: call [`DeviceMonitor::poll`] when the descriptor is readable, and at
/// [`DeviceMonitor::due_time`].
pub struct DeviceMonitor {
    dirs: Vec<PathBuf>,
    trigger: LoadTrigger,
    registry: DeviceRegistry,
}

/// A change of a device, or of a specification or directory that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceChange {
    /// Qualified name of the device; `None` for a specification or directory.
    pub device: Option<String>,
    pub path: PathBuf,
    /// A device that several files of one directory define is [`ChangeKind::Broken`].
    pub kind: ChangeKind,
}

impl AsFd for DeviceMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.trigger.watches.as_fd()
    }
}

impl DeviceMonitor {
    /// Watches and loads directories, in order of increasing precedence. After events, they are
    /// loaded again once no event has occurred for the time `coalesce`.
    pub fn new(dirs: Vec<PathBuf>, coalesce: Duration) -> Result<Self, MonitorError> {
        let trigger = LoadTrigger::new(coalesce, MonitorOptions::default().max_watches)?;
        let mut monitor = DeviceMonitor { dirs, trigger, registry: DeviceRegistry::default() };
        monitor.load()?;
        Ok(monitor)
    }

    /// Returns the directories, in order of increasing precedence.
    pub fn dirs(&self) -> &[PathBuf] {
        &self.dirs
    }

    /// Returns the devices found by the last load.
    pub fn registry(&self) -> &DeviceRegistry {
        &self.registry
    }

    /// Reads events, loads the directories if a load is due, and returns the changes. Never waits.
    pub fn poll(&mut self) -> Result<Vec<DeviceChange>, MonitorError> {
        match self.trigger.poll()? {
            Some(_) => self.load(),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the time of the next load, if there were events since the last one.
    pub fn due_time(&self) -> Option<Instant> {
        self.trigger.due_time()
    }

    /// Reads all files now, whether or not there were events.
    pub fn rescan(&mut self) -> Result<Vec<DeviceChange>, MonitorError> {
        self.trigger.force()?;
        self.load()
    }

    fn load(&mut self) -> Result<Vec<DeviceChange>, MonitorError> {
        let start = Instant::now();
        let watches = &mut self.trigger.watches;
        let mut survey = watches.survey();
        if let Err(error) = self.dirs.iter().try_for_each(|dir| survey.dir(dir, is_spec_name)) {
            watches.note_loss();
            return Err(error);
        }
        let registry = DeviceRegistry::load(&self.dirs);
        survey.finish();
        let changes = diff(&self.registry, &registry);
        self.registry = registry;
        self.trigger.note_load(start, true);
        Ok(changes)
    }
}

/// The subject of a change: a device, or a specification or directory that cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ChangedItem<'r> {
    Device(&'r str),
    Path(&'r Path),
}

/// The state of a device, specification or directory.
enum DeviceStatus<'r> {
    InForce(DeviceEntry<'r>),
    Conflict(&'r BTreeSet<PathBuf>),
    Unusable(&'r DeviceProblem),
}

impl DeviceStatus<'_> {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (DeviceStatus::InForce(a), DeviceStatus::InForce(b)) => {
                a.path == b.path
                    && a.device == b.device
                    && a.spec.cdi_version == b.spec.cdi_version
                    && a.spec.container_edits == b.spec.container_edits
            }
            (DeviceStatus::Conflict(a), DeviceStatus::Conflict(b)) => a == b,
            (DeviceStatus::Unusable(a), DeviceStatus::Unusable(b)) => {
                chain(&a.source) == chain(&b.source)
            }
            _ => false,
        }
    }

    fn path(&self) -> &Path {
        match self {
            DeviceStatus::InForce(entry) => entry.path,
            DeviceStatus::Conflict(files) => files.first().map_or(Path::new(""), PathBuf::as_path),
            DeviceStatus::Unusable(problem) => &problem.path,
        }
    }
}

fn statuses(registry: &DeviceRegistry) -> BTreeMap<ChangedItem<'_>, DeviceStatus<'_>> {
    let devices = registry
        .devices()
        .map(|entry| (ChangedItem::Device(entry.name), DeviceStatus::InForce(entry)));
    let conflicts = registry
        .conflicts()
        .iter()
        .map(|(name, files)| (ChangedItem::Device(name), DeviceStatus::Conflict(files)));
    let problems = registry
        .problems()
        .iter()
        .map(|problem| (ChangedItem::Path(&problem.path), DeviceStatus::Unusable(problem)));
    devices.chain(conflicts).chain(problems).collect()
}

/// Returns the differences between two loads of the same directories: devices by name, then paths.
fn diff(old: &DeviceRegistry, new: &DeviceRegistry) -> Vec<DeviceChange> {
    let (before, after) = (statuses(old), statuses(new));
    let items: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    let change = |item: ChangedItem<'_>| {
        let (kind, status) = match (before.get(&item), after.get(&item)) {
            (Some(old), Some(new)) if old.is_same(new) => return None,
            (None, Some(new @ DeviceStatus::InForce(_))) => (ChangeKind::Added, new),
            (Some(DeviceStatus::InForce(_)), Some(new @ DeviceStatus::InForce(_))) => {
                (ChangeKind::Changed, new)
            }
            (Some(_), Some(new @ DeviceStatus::InForce(_))) => (ChangeKind::Restored, new),
            (_, Some(new)) => (ChangeKind::Broken { in_force: false }, new),
            (Some(old @ DeviceStatus::Unusable(problem)), None) if problem.path.exists() => {
                (ChangeKind::Readable, old)
            }
            (Some(old), None) => (ChangeKind::Removed, old),
            (None, None) => return None,
        };
        let device = match item {
            ChangedItem::Device(name) => Some(name.to_owned()),
            ChangedItem::Path(_) => None,
        };
        Some(DeviceChange { device, path: status.path().to_owned(), kind })
    };
    items.into_iter().filter_map(change).collect()
}
