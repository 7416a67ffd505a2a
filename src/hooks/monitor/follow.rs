//! The monitor: waits for events, loads hooks, and replaces the active hooks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::attributes::{PathAttributes, altered};
use super::interest::ReportedChanges;
use super::trigger::LoadTrigger;
use super::{ChangeKind, FileChange, MonitorError, diff};
use crate::hooks::load::{load_after, load_reusing};
use crate::hooks::set::is_hook_file_name;
use crate::hooks::{
    EntryState, HookError, HookFile, LoadOptions, LoadedEntry, LoadedHooks, PathCheck,
};

/// Maximum number of loads in a row: a load is repeated if programs of hooks appeared or vanished
/// during it.
const MAX_ROUNDS: usize = 4;

/// Options of a [`Monitor`].
#[derive(Clone, Debug)]
pub struct MonitorOptions {
    pub load: LoadOptions,
    /// Time without events before a load; 100 ms by default, at most an hour. Under continuous
    /// events, the load starts after ten times as long.
    pub coalesce: Duration,
    /// Limit of watched directories, 1024 by default. Beyond it, directories of programs and of
    /// symlink targets are not watched, and changes in them are noticed at the next load. Hook
    /// directories are always watched.
    pub max_watches: usize,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        MonitorOptions {
            load: LoadOptions::default(),
            coalesce: Duration::from_millis(100),
            max_watches: 1024,
        }
    }
}

/// Follows hook directories.
///
/// All work is done in [`Monitor::wait`], or in [`Monitor::poll`] for callers with an event loop of
/// their own. Its two threads, one of them of the `notify` crate, only read events and add watches,
/// and end with the monitor. Fork, or enter namespaces that processes with threads cannot enter,
/// before creating a monitor.
///
/// See [the module](super) for the changes it notices, and for its handling of broken files.
pub struct Monitor {
    options: MonitorOptions,
    trigger: LoadTrigger,
    unwatched: usize,
    current: CurrentHooks,
    /// Attributes of hook files that are no symlinks.
    files: HashMap<PathBuf, PathAttributes>,
    /// Attributes of programs, and of symlinks and directories in the paths of hook files and
    /// programs.
    others: HashMap<PathBuf, PathAttributes>,
    stopper: MonitorStopper,
}

/// Handle that gives any thread the active hooks.
#[derive(Clone, Debug)]
pub struct CurrentHooks(Arc<Mutex<Arc<LoadedHooks>>>);

impl CurrentHooks {
    /// Returns the result of the last load, an immutable snapshot.
    pub fn snapshot(&self) -> Arc<LoadedHooks> {
        // The lock is held only to clone an `Arc`, which cannot panic.
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, loaded: LoadedHooks) {
        let old = {
            let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::new(loaded))
        };
        // Thousands of hooks may be freed here: not under the lock.
        drop(old);
    }
}

/// Ends [`Monitor::wait`] from any thread.
#[derive(Clone, Debug)]
pub struct MonitorStopper(Arc<OwnedFd>);

impl MonitorStopper {
    /// Makes the current wait and all later ones return [`WakeReason::Stopped`].
    pub fn stop(&self) {
        // Writing to an eventfd fails only if its counter is full: then it was written to before.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// The reasons for [`Monitor::wait`] to return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// Hooks changed; the list is not empty.
    Changed(Vec<FileChange>),
    Deadline,
    Stopped,
}

impl AsFd for Monitor {
    /// Returns the descriptor that is readable when [`Monitor::poll`] has events to read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.trigger.watches.as_fd()
    }
}

impl Monitor {
    /// Watches the directories and loads them.
    ///
    /// The watches come first, so that changes after the load are noticed. Directories that do not
    /// exist are no error, nor are problems with files: see [`LoadedHooks::problems`].
    pub fn new(options: MonitorOptions) -> Result<Self, MonitorError> {
        let setup = |errno: Errno| MonitorError::Setup(errno.into());
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(setup)?;
        let mut monitor = Monitor {
            trigger: LoadTrigger::new(options.coalesce, options.max_watches)?,
            unwatched: 0,
            current: CurrentHooks(Arc::default()),
            files: HashMap::new(),
            others: HashMap::new(),
            stopper: MonitorStopper(Arc::new(stop)),
            options,
        };
        monitor.load(ReportedChanges { all: true, ..Default::default() })?;
        Ok(monitor)
    }

    /// Returns the result of the last load.
    pub fn snapshot(&self) -> Arc<LoadedHooks> {
        self.current.snapshot()
    }

    /// Returns a handle that gives other threads the current snapshot.
    pub fn current_hooks(&self) -> CurrentHooks {
        self.current.clone()
    }

    /// Returns a handle that ends [`Monitor::wait`].
    pub fn stopper(&self) -> MonitorStopper {
        self.stopper.clone()
    }

    /// Returns the number of directories of programs and link targets that are not watched, because
    /// there are too many or they may not be read.
    pub fn unwatched_count(&self) -> usize {
        self.unwatched
    }

    /// Waits until hooks change, the deadline passes, or the monitor is stopped.
    ///
    /// After the deadline, pending events are still read once.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<WakeReason, MonitorError> {
        loop {
            let until = [deadline, self.due_time()].into_iter().flatten().min();
            if self.sleep(until)? {
                return Ok(WakeReason::Stopped);
            }
            let changes = self.poll()?;
            if !changes.is_empty() {
                return Ok(WakeReason::Changed(changes));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(WakeReason::Deadline);
            }
        }
    }

    /// Reads events, loads the hooks if a load is due, and returns the changes. Never waits.
    ///
    /// For event loops: call it when the monitor's descriptor is readable, and at [`Monitor::due_time`].
    pub fn poll(&mut self) -> Result<Vec<FileChange>, MonitorError> {
        match self.trigger.poll()? {
            Some(reported) => self.load(reported),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the time of the next load, if there were events since the last one.
    pub fn due_time(&self) -> Option<Instant> {
        self.trigger.due_time()
    }

    /// Reads all files now, whether or not there were events.
    pub fn rescan(&mut self) -> Result<Vec<FileChange>, MonitorError> {
        let reported = self.trigger.force()?;
        self.load(reported)
    }

    fn load(&mut self, reported: ReportedChanges) -> Result<Vec<FileChange>, MonitorError> {
        let start = Instant::now();
        let old = self.snapshot();
        let loaded = self.load_once(&old, &reported);
        let LoadResult { mut loaded, files, others } =
            loaded.inspect_err(|_| self.trigger.watches.note_loss())?;
        drop_vanished_entries(&mut loaded);
        let mut changes = diff(&old, &loaded);
        // A path is not reported twice, for example as broken and altered after its type changed.
        let told = changes.iter().filter(|change| change.kind != ChangeKind::Changed);
        let told: HashSet<_> = told.map(|change| &change.path).collect();
        let more = altered(&self.files, &files).chain(altered(&self.others, &others));
        let more: Vec<_> = more.filter(|change| !told.contains(&change.path)).collect();
        changes.extend(more);
        changes.sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
        self.current.set(loaded);
        self.others = others;
        if reported.all {
            self.files = files;
        } else {
            for change in changes.iter().filter(|change| change.kind == ChangeKind::Removed) {
                self.files.remove(&change.path);
            }
            self.files.extend(files);
        }
        self.trigger.note_load(start, reported.all);
        Ok(changes)
    }

    /// Updates the watches, and loads.
    fn load_once(
        &mut self,
        old: &LoadedHooks,
        reported: &ReportedChanges,
    ) -> Result<LoadResult, MonitorError> {
        let options = &self.options.load;
        let mut round = 0;
        loop {
            round += 1;
            let mut survey = self.trigger.watches.survey();
            for dir in &options.dirs {
                survey.dir(dir, is_hook_file_name)?;
            }
            let links = &survey.links;
            let is_changed = |name: &OsStr| {
                reported.all || reported.names.contains(name) || links.contains(name)
            };
            let loaded = match reported.all {
                true => load_after(old, options),
                false => load_changed(old, options, is_changed),
            };
            let is_followed = |name: &OsStr| is_changed(name) && !links.contains(name);
            let files = loaded.entries.iter().filter(|entry| entry.state != EntryState::NotJson);
            let files = files.filter(|entry| entry.path.file_name().is_some_and(is_followed));
            let files = files.map(|entry| entry.path.clone());
            let files = files.filter_map(|path| Some((PathAttributes::of(&path)?, path)));
            let files = files.map(|(attributes, path)| (path, attributes)).collect();
            let programs = match options.path_check {
                PathCheck::Exists => programs(&loaded),
                PathCheck::Skip => BTreeMap::new(),
            };
            for program in programs.keys() {
                survey.program(program)?;
            }
            self.unwatched = survey.finish();
            let others = survey.attributes;
            // A program that appeared or vanished between the load and its watch caused no event.
            let is_as_loaded =
                programs.iter().all(|(program, exists)| fs::metadata(program).is_ok() == *exists);
            if is_as_loaded || round == MAX_ROUNDS {
                return Ok(LoadResult { loaded, files, others });
            }
        }
    }

    /// Waits for events or a point in time, and returns whether the monitor was stopped.
    fn sleep(&self, until: Option<Instant>) -> Result<bool, MonitorError> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A time too long to express is no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [
            PollFd::new(&self.trigger.watches, PollFlags::IN),
            PollFd::new(&self.stopper.0, PollFlags::IN),
        ];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!fds[1].revents().is_empty()),
            Err(errno) => Err(MonitorError::Read(errno.into())),
        }
    }
}

/// Hooks, and the attributes of paths that they depend on.
struct LoadResult {
    loaded: LoadedHooks,
    /// Attributes of the hook files that this load read, except symlinks.
    files: HashMap<PathBuf, PathAttributes>,
    others: HashMap<PathBuf, PathAttributes>,
}

/// Returns the programs of hooks, and whether they existed during the load.
fn programs(loaded: &LoadedHooks) -> BTreeMap<&Path, bool> {
    let missing = loaded.problems.iter().filter_map(|problem| match &problem.source {
        HookError::PathMissing { path } | HookError::PathLookup { path, .. } => {
            Some((Path::new(path), false))
        }
        _ => None,
    });
    let there = loaded.files().map(|file| (Path::new(&file.definition.hook.path), true));
    there.chain(missing).collect()
}

/// Drops files that vanished between being listed and being read: another event reports their
/// removal. Dangling symlinks stay, as problems.
fn drop_vanished_entries(loaded: &mut LoadedHooks) {
    let is_gone = |path: &Path| {
        fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let LoadedHooks { entries, problems, .. } = loaded;
    entries.retain(|entry| {
        let keep = entry.state != EntryState::Vanished || !is_gone(&entry.path);
        if !keep {
            problems.retain(|problem| problem.path != entry.path);
        }
        keep
    });
}

/// Loads hooks again as [`load_after`] does, but reads a file that was valid before only if
/// `is_changed` returns true for its name.
///
/// All directories are listed again. Files that could not be used before, and files whose program
/// does not exist now, are read in any case.
pub(super) fn load_changed(
    previous: &LoadedHooks,
    options: &LoadOptions,
    is_changed: impl Fn(&OsStr) -> bool,
) -> LoadedHooks {
    let is_unusable =
        |entry: &&LoadedEntry| matches!(entry.state, EntryState::Broken | EntryState::Vanished);
    let unusable: HashSet<_> =
        previous.entries.iter().filter(is_unusable).map(|entry| entry.path.as_os_str()).collect();
    let is_unchanged =
        |file: &&HookFile| !is_changed(&file.name) && !unusable.contains(file.path.as_os_str());
    let unchanged = previous.files().filter(is_unchanged);
    let unchanged = unchanged.map(|file| (file.path.as_os_str(), file)).collect();
    load_reusing(previous, options, unchanged)
}
