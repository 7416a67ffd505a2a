//! The monitor: waits for events, loads, and swaps what is in force.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::watch::Watches;
use super::{Change, MonitorError, diff};
use crate::hooks::load::load_after;
use crate::hooks::{EntryState, HookError, LoadOptions, Loaded, PathCheck};

/// A file that is written all the time keeps nobody waiting longer than this many times the
/// coalescing time.
const MAX_COALESCE: u32 = 10;

/// Longer times mean this one.
const LONGEST_COALESCE: Duration = Duration::from_secs(3600);

/// Loading takes at most one part in this many of the time, however many events there are.
const MAX_LOAD: u32 = 5;

/// How often a load is repeated at once because programs of its hooks came or went meanwhile.
const MAX_ROUNDS: usize = 4;

/// What to follow, and how.
#[derive(Clone, Debug)]
pub struct MonitorOptions {
    pub load: LoadOptions,
    /// How long the directories must be quiet before they are loaded: 100 ms, at most an hour. When
    /// they are never quiet, they are loaded after ten times as long.
    pub coalesce: Duration,
    /// How many directories may be watched for the programs of hooks and the targets of links: 1024.
    /// A change in others is seen when something else changes. Hook directories are watched anyway.
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
/// It does all its work in [`Monitor::wait`], or in [`Monitor::poll`] for callers with an event loop
/// of their own. The thread behind it, of the `notify` crate, only reads events, and ends with it;
/// whoever forks, or enters namespaces that no process with threads can, does that first.
///
/// See [the module](super) for what is seen, and for what becomes of broken files.
pub struct Monitor {
    options: MonitorOptions,
    watches: Watches,
    unwatched: usize,
    current: Current,
    stopper: Stopper,
    pending: Option<Pending>,
    /// When the last load ended, and how long it took.
    last_load: (Instant, Duration),
}

/// Events that were not loaded yet.
#[derive(Clone, Copy)]
struct Pending {
    first: Instant,
    last: Instant,
}

/// Gives the hooks that are in force at the moment, to any thread.
#[derive(Clone, Debug)]
pub struct Current(Arc<Mutex<Arc<Loaded>>>);

impl Current {
    /// Returns what was loaded last. It does not change in the caller's hands.
    pub fn snapshot(&self) -> Arc<Loaded> {
        // The lock is held to count one more owner, and nothing in that can panic.
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, loaded: Loaded) {
        let old = {
            let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::new(loaded))
        };
        // Thousands of hooks are freed here, if nobody else holds them: not under the lock.
        drop(old);
    }
}

/// Ends [`Monitor::wait`] from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Makes the wait that is going on, and all later ones, return [`Wake::Stopped`].
    pub fn stop(&self) {
        // It fails only when the counter is full, and then the monitor is stopped anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// The reasons for which [`Monitor::wait`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Hooks changed; there is at least one change.
    Changed(Vec<Change>),
    Deadline,
    Stopped,
}

impl AsFd for Monitor {
    /// Returns the descriptor that is readable when [`Monitor::poll`] has something to look at.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watches.as_fd()
    }
}

impl Monitor {
    /// Watches the directories and loads them.
    ///
    /// The watches come first: what changes after the load is noticed. Directories that do not exist
    /// are no error, nor are problems with files: see [`Loaded::problems`].
    pub fn new(options: MonitorOptions) -> Result<Self, MonitorError> {
        let setup = |errno: Errno| MonitorError::Setup(errno.into());
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(setup)?;
        let mut monitor = Monitor {
            watches: Watches::new(options.max_watches)?,
            unwatched: 0,
            current: Current(Arc::default()),
            stopper: Stopper(Arc::new(stop)),
            pending: None,
            last_load: (Instant::now(), Duration::ZERO),
            options,
        };
        monitor.load()?;
        Ok(monitor)
    }

    /// Returns what was loaded last.
    pub fn snapshot(&self) -> Arc<Loaded> {
        self.current.snapshot()
    }

    /// Returns what gives other threads the snapshot of the moment.
    pub fn current(&self) -> Current {
        self.current.clone()
    }

    /// Returns a handle that ends [`Monitor::wait`].
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Returns how many directories of programs and link targets could not be watched, because
    /// there are too many or they may not be read.
    pub fn unwatched(&self) -> usize {
        self.unwatched
    }

    /// Waits until hooks change, the deadline is over, or the monitor is stopped.
    ///
    /// A deadline that is over does not keep it from looking once.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<Wake, MonitorError> {
        loop {
            let until = [deadline, self.due()].into_iter().flatten().min();
            if self.sleep(until)? {
                return Ok(Wake::Stopped);
            }
            let changes = self.poll()?;
            if !changes.is_empty() {
                return Ok(Wake::Changed(changes));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(Wake::Deadline);
            }
        }
    }

    /// Takes note of what happened, and loads if it is time to; never waits.
    ///
    /// For event loops: call it when the monitor's descriptor is readable, and at [`Monitor::due`].
    pub fn poll(&mut self) -> Result<Vec<Change>, MonitorError> {
        let matters = self.watches.read()?;
        let now = Instant::now();
        if matters {
            let first = self.pending.map_or(now, |pending| pending.first);
            self.pending = Some(Pending { first, last: now });
        }
        match self.due() {
            Some(due) if due <= now => self.load(),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns when the next load is due, if something happened since the last one.
    pub fn due(&self) -> Option<Instant> {
        let Pending { first, last } = self.pending?;
        let (loaded, took) = self.last_load;
        let coalesce = self.options.coalesce.min(LONGEST_COALESCE);
        let quiet = last + coalesce;
        let latest = first + coalesce * MAX_COALESCE;
        Some(quiet.min(latest).max(loaded + took * (MAX_LOAD - 1)))
    }

    /// Loads now, whether or not something happened.
    pub fn rescan(&mut self) -> Result<Vec<Change>, MonitorError> {
        self.watches.read()?;
        self.load()
    }

    fn load(&mut self) -> Result<Vec<Change>, MonitorError> {
        let start = Instant::now();
        let old = self.snapshot();
        let mut loaded = self.load_once(&old)?;
        forget_what_went_away(&mut loaded);
        let changes = diff(&old, &loaded);
        self.current.set(loaded);
        self.pending = None;
        let end = Instant::now();
        self.last_load = (end, end - start);
        Ok(changes)
    }

    /// Brings the watches up to date, and loads.
    fn load_once(&mut self, old: &Loaded) -> Result<Loaded, MonitorError> {
        let options = &self.options.load;
        let mut round = 0;
        loop {
            round += 1;
            let mut survey = self.watches.survey();
            for dir in &options.dirs {
                survey.hook_dir(dir)?;
            }
            let loaded = load_after(old, options);
            let programs = match options.path_check {
                PathCheck::Exists => programs(&loaded),
                PathCheck::Skip => BTreeMap::new(),
            };
            for program in programs.keys() {
                survey.file(program)?;
            }
            self.unwatched = survey.finish();
            // A program that came or went after the load and before its watch is no event.
            let is_as_loaded =
                programs.iter().all(|(program, exists)| fs::metadata(program).is_ok() == *exists);
            if is_as_loaded || round == MAX_ROUNDS {
                return Ok(loaded);
            }
        }
    }

    /// Waits for events or a point in time, and returns whether the monitor was stopped.
    fn sleep(&self, until: Option<Instant>) -> Result<bool, MonitorError> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A time too long to express is no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [
            PollFd::new(&self.watches, PollFlags::IN),
            PollFd::new(&self.stopper.0, PollFlags::IN),
        ];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!fds[1].revents().is_empty()),
            Err(errno) => Err(MonitorError::Read(errno.into())),
        }
    }
}

/// Returns the programs of hooks, and whether they were there.
fn programs(loaded: &Loaded) -> BTreeMap<&Path, bool> {
    let missing = loaded.problems.iter().filter_map(|problem| match &problem.source {
        HookError::PathMissing { path } | HookError::PathLookup { path, .. } => {
            Some((Path::new(path), false))
        }
        _ => None,
    });
    let there = loaded.files().map(|file| (Path::new(&file.definition.hook.path), true));
    there.chain(missing).collect()
}

/// Drops files that went away between being listed and being read: they are not there, and an event
/// says so. Links to nothing stay, as problems.
fn forget_what_went_away(loaded: &mut Loaded) {
    let is_gone = |path: &Path| {
        fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let Loaded { entries, problems, .. } = loaded;
    entries.retain(|entry| {
        let keep = entry.state != EntryState::Vanished || !is_gone(&entry.path);
        if !keep {
            problems.retain(|problem| problem.path != entry.path);
        }
        keep
    });
}
