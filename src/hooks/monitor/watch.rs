//! inotify watches on everything that decides which hooks there are.
//!
//! A path means something else when any of its components does, so each directory on the way to a
//! hook directory, a hook file or a program is watched, with the names in it that matter. A missing
//! directory needs nothing else: the nearest one that exists is watched for its name. Links are
//! followed component by component, as the kernel does, with a watch at each step.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::{Event, EventKindMask};
use notify::{Config, ErrorKind, INotifyWatcher, RecursiveMode, WatchPathConfig, Watcher};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustix::io::Errno;

use super::interest::{Interest, Interests};
use crate::hooks::set::is_hook_file_name;

/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// The watches of a monitor. The thread of `notify` reads the events and gives them to [`Shared`].
pub struct Watches {
    notify: INotifyWatcher,
    shared: Arc<Shared>,
    max_watches: usize,
}

/// What the thread of `notify` and the monitor have in common.
struct Shared {
    interests: Mutex<Interests>,
    /// An eventfd, readable when there was an event that matters.
    signal: OwnedFd,
    mark: Option<Mark>,
}

impl Shared {
    fn interests(&self) -> MutexGuard<'_, Interests> {
        // Nothing panics while it is locked.
        self.interests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, event: Result<Event, notify::Error>) {
        if let (Ok(event), Some(mark)) = (&event, &self.mark)
            && mark.take(event)
        {
            return;
        }
        // After an error nobody knows what was missed.
        if event.map_or(true, |event| self.interests().take_note(&event)) {
            // It fails only when the counter is full, and then it is readable anyway.
            let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
        }
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }
}

impl Watches {
    pub(super) fn new(max_watches: usize) -> Result<Self, MonitorError> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| MonitorError::Setup(errno.into()))?;
        let shared =
            Arc::new(Shared { interests: Mutex::default(), signal, mark: Mark::new().ok() });
        let handler = {
            let shared = Arc::clone(&shared);
            move |event| shared.handle(event)
        };
        // Whoever opens a file or reads it, as loading does, is no event.
        let config =
            Config::default().with_event_kinds(EventKindMask::CORE | EventKindMask::ACCESS_CLOSE);
        let mut notify = INotifyWatcher::new(handler, config)
            .map_err(|error| MonitorError::Setup(io_error(error)))?;
        if let Some(mark) = &shared.mark {
            mark.watch(&mut notify);
        }
        Ok(Watches { notify, shared, max_watches })
    }

    /// Returns whether something that matters happened since the last call, up to this moment.
    pub fn read(&mut self) -> Result<bool, MonitorError> {
        if let Some(mark) = &self.shared.mark {
            mark.wait();
        }
        match rustix::io::read(&self.shared.signal, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(MonitorError::Read(errno.into())),
        }
    }

    /// Starts to work out anew what must be watched. Watches in use stay until [`Survey::finish`].
    pub fn survey(&mut self) -> Survey<'_> {
        let anew = self.shared.interests().begin();
        Survey {
            watches: self,
            anew,
            watched: HashMap::new(),
            inodes: HashMap::new(),
            unwatched: 0,
        }
    }

    /// Has `notify` watch a directory whose path has no links.
    fn add(&mut self, dir: &Path, anew: bool) -> Result<(), io::Error> {
        if !anew && self.shared.interests().is_current(dir) {
            return Ok(());
        }
        // It fails for directories that are not watched any more.
        let _ = self.notify.unwatch(dir);
        let config =
            WatchPathConfig::new(RecursiveMode::NonRecursive).with_dereference_symlinks(false);
        self.notify.watch_with(dir, config).map_err(io_error)
    }
}

/// A new set of watches in the making.
pub struct Survey<'w> {
    watches: &'w mut Watches,
    /// Whether directories that are watched already may be others now.
    anew: bool,
    /// Directories by real path, with the path under which each is watched.
    watched: HashMap<PathBuf, PathBuf>,
    /// The same by device and inode: a directory that is mounted in several places has one watch, whose
    /// events come with one path.
    inodes: HashMap<(u64, u64), PathBuf>,
    unwatched: usize,
}

/// What to do when there are too many watches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    /// A change is noticed late without it.
    May,
}

impl Survey<'_> {
    /// Watches a hook directory, and the files that links in it lead to.
    pub fn hook_dir(&mut self, dir: &Path) -> Result<(), MonitorError> {
        let Some(real) = self.follow(dir, Need::Must)? else { return Ok(()) };
        if !self.watch(&real, Need::Must, |interest| interest.hook_files = true)? {
            return Ok(());
        }
        // Whoever cannot list a directory is told so when it is loaded.
        for entry in fs::read_dir(&real).into_iter().flatten().flatten() {
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !is_link || !is_hook_file_name(&entry.file_name()) {
                continue;
            }
            let Some(file) = self.follow(&entry.path(), Need::May)? else { continue };
            if let (Some(parent), Some(name)) = (file.parent(), file.file_name()) {
                self.watch(parent, Need::May, |interest| {
                    interest.files.insert(name.to_owned());
                })?;
            }
        }
        Ok(())
    }

    /// Watches whether a file exists.
    pub fn file(&mut self, path: &Path) -> Result<(), MonitorError> {
        self.follow(path, Need::May).map(|_| ())
    }

    /// Puts the new set in place of the old one, and returns how many directories it lacks.
    pub fn finish(self) -> usize {
        let old = self.watches.shared.interests().finish();
        for dir in old {
            // It fails for directories that are gone: they are not watched any more.
            let _ = self.watches.notify.unwatch(&dir);
        }
        self.unwatched
    }

    /// Finds the real path of a file or directory, and watches each step of the way. Returns none
    /// if it does not exist or cannot be reached.
    fn follow(&mut self, path: &Path, need: Need) -> Result<Option<PathBuf>, MonitorError> {
        // It fails for an empty path, which nobody can open either.
        let Ok(path) = std::path::absolute(path) else { return Ok(None) };
        let mut rest = Vec::new();
        push_components(&mut rest, &path);
        let mut real = PathBuf::new();
        let mut links = 0;
        while let Some(component) = rest.pop() {
            if component == "/" {
                real = PathBuf::from("/");
                continue;
            }
            if component == ".." {
                real.pop();
                continue;
            }
            // The watch comes before the look, so that what changes after the look is an event.
            if !self.watch(&real, need, |interest| {
                interest.names.insert(component.clone());
            })? {
                return Ok(None);
            }
            real.push(component);
            match fs::read_link(&real) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Ok(None);
                    }
                    real.pop();
                    push_components(&mut rest, &target);
                }
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {}
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(real))
    }

    /// Watches a directory whose path has no links, and notes what matters there. Returns whether
    /// it can be watched.
    fn watch(
        &mut self,
        dir: &Path,
        need: Need,
        note: impl FnOnce(&mut Interest),
    ) -> Result<bool, MonitorError> {
        if let Some(watched) = self.watched.get(dir) {
            note(self.watches.shared.interests().next(watched));
            return Ok(true);
        }
        if need == Need::May && self.watched.len() >= self.watches.max_watches {
            self.unwatched += 1;
            return Ok(false);
        }
        let inode = match fs::symlink_metadata(dir) {
            Ok(metadata) if metadata.is_dir() => (metadata.dev(), metadata.ino()),
            // It went away, and the watch on its parent has told so.
            Ok(_) => return Ok(false),
            Err(error) => return self.unwatchable(dir, need, error),
        };
        let path = self.inodes.entry(inode).or_insert_with(|| dir.to_owned()).clone();
        // What matters comes first: events that nobody waits for are dropped.
        note(self.watches.shared.interests().next(&path));
        if path == dir
            && let Err(error) = self.watches.add(dir, self.anew)
        {
            self.inodes.remove(&inode);
            self.watches.shared.interests().drop_next(dir);
            return self.unwatchable(dir, need, error);
        }
        self.watched.insert(dir.to_owned(), path);
        Ok(true)
    }

    /// Decides what comes of a directory that cannot be watched.
    fn unwatchable(
        &mut self,
        dir: &Path,
        need: Need,
        source: io::Error,
    ) -> Result<bool, MonitorError> {
        let path = dir.to_owned();
        match Errno::from_io_error(&source) {
            // It went away, and the watch on its parent has told so.
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(false),
            Some(Errno::NOSPC) if need == Need::Must => {
                Err(MonitorError::WatchLimit { path, source })
            }
            Some(Errno::ACCESS | Errno::NOSPC) => {
                self.unwatched += 1;
                Ok(false)
            }
            _ => Err(MonitorError::Watch { path, source }),
        }
    }
}

/// Returns what the kernel said.
fn io_error(error: notify::Error) -> io::Error {
    match error.kind {
        ErrorKind::Io(error) => error,
        ErrorKind::PathNotFound => Errno::NOENT.into(),
        ErrorKind::MaxFilesWatch => Errno::NOSPC.into(),
        _ => io::Error::other(error),
    }
}

/// Puts the components of a path on a stack, the first one on top.
fn push_components(stack: &mut Vec<OsString>, path: &Path) {
    let components = path.components().filter(|component| *component != Component::CurDir);
    stack.extend(components.rev().map(|component| component.as_os_str().to_owned()));
}

/// A mark takes microseconds, and a full queue of events before it milliseconds.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A file in memory that is watched like all else: the kernel queues events in their order. Without
/// `/proc` it has no path and is not watched; then what happened just before a call may be taken note of
/// after it.
struct Mark {
    file: OwnedFd,
    path: PathBuf,
    state: Mutex<State>,
    seen: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unwatched,
    Seen,
    Awaited,
}

impl Mark {
    fn new() -> Result<Self, io::Error> {
        let file = memfd_create("monitor", MemfdFlags::CLOEXEC)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(Mark { file, path, state: Mutex::new(State::Unwatched), seen: Condvar::new() })
    }

    fn watch(&self, notify: &mut INotifyWatcher) {
        if notify.watch(&self.path, RecursiveMode::NonRecursive).is_ok() {
            self.set(State::Seen);
        }
    }

    /// Returns whether an event is the mark, which is seen then.
    fn take(&self, event: &Event) -> bool {
        let is_mark = event.paths.first() == Some(&self.path);
        // Where events were dropped, the mark may be among them.
        if is_mark || event.need_rescan() {
            self.set(State::Seen);
            self.seen.notify_all();
        }
        is_mark
    }

    /// Waits until all events so far were handled, and returns whether they were. If not, they are taken
    /// note of later.
    fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Unwatched {
            return false;
        }
        *state = State::Awaited;
        // Since Linux 6.14 what is written by such a descriptor is no event.
        if fchmod(&self.file, Mode::RUSR | Mode::WUSR).is_err() {
            return false;
        }
        let waited = self.seen.wait_timeout_while(state, LONGEST_WAIT, |it| *it == State::Awaited);
        waited.is_ok_and(|(_, waited)| !waited.timed_out())
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// Why directories cannot be followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// There can be no inotify instance.
    #[error("cannot set up inotify")]
    Setup(#[source] io::Error),
    /// All inotify watches of the user are taken.
    #[error("no inotify watch is left for {}", path.display())]
    WatchLimit { path: PathBuf, source: io::Error },
    /// A directory cannot be watched.
    #[error("cannot watch {}", path.display())]
    Watch { path: PathBuf, source: io::Error },
    /// Events cannot be waited for.
    #[error("cannot wait for inotify events")]
    Read(#[source] io::Error),
}

impl MonitorError {
    /// Returns a stable name of the kind of error, for programs.
    pub fn class(&self) -> &'static str {
        match self {
            MonitorError::Setup(_) => "inotify-setup",
            MonitorError::WatchLimit { .. } => "inotify-watches",
            MonitorError::Watch { .. } | MonitorError::Read(_) => "io",
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            MonitorError::Setup(_) => Some(
                "if too many programs use inotify, raise the limit: sysctl fs.inotify.max_user_instances=1024",
            ),
            MonitorError::WatchLimit { .. } => {
                Some("raise the limit: sysctl fs.inotify.max_user_watches=524288")
            }
            MonitorError::Watch { .. } | MonitorError::Read(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn watches_that_nobody_needs_are_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        let mut watches = Watches::new(1024).unwrap();
        let watched = |watches: &Watches| {
            let paths = watches.notify.watched_paths().unwrap();
            paths.iter().any(|(path, _)| path == dir.path())
        };
        let mut survey = watches.survey();
        survey.file(&program).unwrap();
        assert_eq!(survey.finish(), 0);
        assert!(watched(&watches));
        assert_eq!(watches.survey().finish(), 0);
        assert!(!watched(&watches));
    }

    #[test]
    fn mark_comes_after_what_happened_before() {
        let dir = tempfile::tempdir().unwrap();
        let mut watches = Watches::new(1024).unwrap();
        let mut survey = watches.survey();
        survey.hook_dir(dir.path()).unwrap();
        survey.finish();
        for round in 0..100 {
            assert!(!watches.read().unwrap(), "{round}");
            fs::write(dir.path().join("a.json"), round.to_string()).unwrap();
            assert!(watches.shared.mark.as_ref().unwrap().wait(), "{round}");
            assert!(watches.read().unwrap(), "{round}");
        }
    }

    #[test]
    fn thread_ends_with_the_watches() {
        let watches = Watches::new(1024).unwrap();
        let shared = Arc::downgrade(&watches.shared);
        drop(watches);
        let deadline = Instant::now() + Duration::from_secs(180);
        while shared.strong_count() > 0 {
            assert!(Instant::now() < deadline, "the thread of notify goes on");
            thread::yield_now();
        }
    }
}
