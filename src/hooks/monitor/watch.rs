//! inotify watches on all paths that determine the loaded hooks.
//!
//! A path changes its meaning when any of its components does, so each directory on the way to a
//! hook directory, a hook file or a program is watched, with the relevant names in it. A missing
//! directory needs no special case: the nearest ancestor that exists is watched for its name. Links
//! are followed component by component, as the kernel does, with a watch at each step.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io, thread};

use notify::event::{Event, EventKindMask};
use notify::{Config, ErrorKind, INotifyWatcher, RecursiveMode, WatchPathConfig, Watcher};
use oci_hooks_files::fs::MAX_SYMLINKS;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustix::io::Errno;

use super::attributes::PathAttributes;
use super::interest::{EventFilter, RelevantNames, ReportedChanges};

/// The watches of a monitor. The thread of `notify` reads the events and passes them to [`SharedState`].
pub struct WatchSet {
    requests: Sender<WatchRequest>,
    /// Number of requests so far.
    requested: u64,
    shared: Arc<SharedState>,
    max_watches: usize,
}

/// A request to `notify`, which answers only when no events are pending: if events arrive faster
/// than it reads them, it may never answer.
struct WatchRequest {
    dir: PathBuf,
    /// If not set, the watch is removed.
    is_wanted: bool,
    /// Receives the answer; sending fails if the caller no longer waits.
    result: SyncSender<io::Result<()>>,
}

/// Passes requests to `notify`, until all senders are dropped.
fn pass_requests(
    mut notify: INotifyWatcher,
    requests: Receiver<WatchRequest>,
    shared: &SharedState,
) {
    for WatchRequest { dir, is_wanted, result } in requests {
        // Fails for directories that are not watched, or vanished with their watches.
        let _ = notify.unwatch(&dir);
        let config =
            WatchPathConfig::new(RecursiveMode::NonRecursive).with_dereference_symlinks(false);
        let added = match is_wanted {
            true => notify.watch_with(&dir, config).map_err(io_error),
            false => Ok(()),
        };
        shared.answered.fetch_add(1, Ordering::Relaxed);
        if result.send(added).is_err() {
            // The caller no longer waits: hooks were loaded without this watch, and are loaded
            // again.
            shared.interests().note_loss();
            shared.wake();
        }
    }
}

/// State shared by the thread of `notify` and the monitor.
struct SharedState {
    interests: Mutex<EventFilter>,
    /// An eventfd, readable after a relevant event.
    signal: OwnedFd,
    mark: Option<EventMark>,
    /// Number of answered requests.
    answered: AtomicU64,
}

impl SharedState {
    fn interests(&self) -> MutexGuard<'_, EventFilter> {
        // No code panics while it holds this lock.
        self.interests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, event: Result<Event, notify::Error>) {
        if let (Ok(event), Some(mark)) = (&event, &self.mark)
            && mark.take(event)
        {
            return;
        }
        let matters = match event {
            Ok(event) => self.interests().record(&event),
            // Events may have been lost.
            Err(_) => {
                self.interests().note_loss();
                true
            }
        };
        if matters {
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
    }
}

impl AsFd for WatchSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }
}

impl WatchSet {
    pub(super) fn new(max_watches: usize) -> Result<Self, MonitorError> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| MonitorError::Setup(errno.into()))?;
        let shared = Arc::new(SharedState {
            interests: Mutex::default(),
            signal,
            mark: EventMark::new().ok(),
            answered: AtomicU64::new(0),
        });
        let handler = {
            let shared = Arc::clone(&shared);
            move |event| shared.handle(event)
        };
        // Opening or reading a file, as loading does, is no event.
        let config =
            Config::default().with_event_kinds(EventKindMask::CORE | EventKindMask::ACCESS_CLOSE);
        let mut notify = INotifyWatcher::new(handler, config)
            .map_err(|error| MonitorError::Setup(io_error(error)))?;
        if let Some(mark) = &shared.mark {
            mark.watch(&mut notify);
        }
        let (requests, received) = mpsc::channel();
        let answering = Arc::clone(&shared);
        thread::Builder::new()
            .name("watches".to_owned())
            .spawn(move || pass_requests(notify, received, &answering))
            .map_err(MonitorError::Setup)?;
        Ok(WatchSet { requests, requested: 0, shared, max_watches })
    }

    /// Returns whether a relevant event occurred since the last call, including events still in the
    /// queue.
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

    /// Returns whether a change since the last load may affect more than the hook file of one name.
    pub fn may_change_all(&self) -> bool {
        self.shared.interests().may_change_all()
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&self) -> ReportedChanges {
        self.shared.interests().take_changes()
    }

    /// Makes the next load read everything.
    pub fn note_loss(&self) {
        self.shared.interests().note_loss();
    }

    /// Starts to compute the watches again. Watches in use stay until [`WatchSurvey::finish`].
    pub fn survey(&mut self) -> WatchSurvey<'_> {
        let anew = self.shared.interests().begin();
        WatchSurvey {
            watches: self,
            anew,
            watched: HashMap::new(),
            inodes: HashMap::new(),
            unwatched: 0,
            links: HashSet::new(),
            attributes: HashMap::new(),
        }
    }

    /// Watches a directory whose path has no links.
    fn add(&mut self, dir: &Path, anew: bool) -> Result<(), io::Error> {
        if !anew && self.shared.interests().is_current(dir) {
            return Ok(());
        }
        self.request(dir, true)
    }

    /// Adds or removes a watch. Fails with `ETIMEDOUT` if `notify` does not answer in time; hooks
    /// are loaded again when it answers.
    fn request(&mut self, dir: &Path, is_wanted: bool) -> Result<(), io::Error> {
        let is_busy = self.shared.answered.load(Ordering::Relaxed) < self.requested;
        if is_busy && is_wanted {
            return Err(Errno::TIMEDOUT.into());
        }
        let (result, answer) = mpsc::sync_channel(0);
        let request = WatchRequest { dir: dir.to_owned(), is_wanted, result };
        self.requests.send(request).map_err(io::Error::other)?;
        self.requested += 1;
        let patience = if is_busy { Duration::ZERO } else { LONGEST_WAIT };
        answer.recv_timeout(patience).unwrap_or_else(|_| Err(Errno::TIMEDOUT.into()))
    }
}

/// A new set of watches under construction.
pub struct WatchSurvey<'w> {
    watches: &'w mut WatchSet,
    /// If set, all directories are watched again, because their paths may lead to other directories
    /// now.
    anew: bool,
    /// Directories by real path, with the path under which each is watched.
    watched: HashMap<PathBuf, PathBuf>,
    /// The watched paths by device and inode: a directory that is mounted in several places has one
    /// watch, whose events come with one path.
    inodes: HashMap<(u64, u64), PathBuf>,
    unwatched: usize,
    /// Names of hook files or CDI specifications that are symlinks. They are read at every load,
    /// because their targets may have no watch.
    pub links: HashSet<OsString>,
    /// Attributes of directories, links to them, and programs, by path without links.
    pub attributes: HashMap<PathBuf, PathAttributes>,
}

/// Importance of a watch when there are too many.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchPriority {
    /// The monitor fails if no inotify watch is left.
    Required,
    /// Changes are noticed late without a watch.
    Optional,
}

impl WatchSurvey<'_> {
    /// Watches a directory, the files in it for which `is_file` holds, and the targets of symlinks
    /// with such names.
    pub fn dir(&mut self, dir: &Path, is_file: fn(&OsStr) -> bool) -> Result<(), MonitorError> {
        let Some(real) = self.follow(dir, WatchPriority::Required)? else { return Ok(()) };
        if !self
            .watch(&real, WatchPriority::Required, |interest| interest.is_file = Some(is_file))?
        {
            return Ok(());
        }
        // Loading reports directories that cannot be listed.
        for entry in fs::read_dir(&real).into_iter().flatten().flatten() {
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !is_link || !is_file(&entry.file_name()) {
                continue;
            }
            self.links.insert(entry.file_name());
            let Some(file) = self.follow(&entry.path(), WatchPriority::Optional)? else { continue };
            self.content(&file)?;
        }
        Ok(())
    }

    /// Watches the existence and content of a program.
    pub fn program(&mut self, path: &Path) -> Result<(), MonitorError> {
        let Some(program) = self.follow(path, WatchPriority::Optional)? else { return Ok(()) };
        self.content(&program)?;
        if let Some(attributes) = PathAttributes::of_program(&program) {
            self.attributes.insert(program, attributes);
        }
        Ok(())
    }

    /// Watches the content of a file whose path has no links.
    fn content(&mut self, file: &Path) -> Result<(), MonitorError> {
        let (Some(parent), Some(name)) = (file.parent(), file.file_name()) else { return Ok(()) };
        let note = |interest: &mut RelevantNames| {
            interest.files.insert(name.to_owned());
        };
        self.watch(parent, WatchPriority::Optional, note).map(|_| ())
    }

    /// Replaces the old set with the new one, and returns the number of directories without a watch.
    pub fn finish(&mut self) -> usize {
        let old = self.watches.shared.interests().finish();
        for dir in old {
            // Events of a watch that stays are ignored.
            let _ = self.watches.request(&dir, false);
        }
        self.unwatched
    }

    /// Finds the real path of a file or directory, and watches each step of the way. Returns `None`
    /// if it does not exist or cannot be reached.
    fn follow(
        &mut self,
        path: &Path,
        need: WatchPriority,
    ) -> Result<Option<PathBuf>, MonitorError> {
        // Fails for an empty path, which cannot be opened either.
        let Ok(path) = std::path::absolute(path) else { return Ok(None) };
        let mut rest = Vec::new();
        push_components(&mut rest, &path);
        let mut real = PathBuf::new();
        let mut links = 0;
        while let Some(component) = rest.pop() {
            if component == "/" {
                real = PathBuf::from("/");
                self.note_attributes(&real);
                continue;
            }
            if component == ".." {
                real.pop();
                continue;
            }
            // The watch is added before the component is read, so that later changes cause events.
            if !self.watch(&real, need, |interest| {
                interest.names.insert(component.clone());
            })? {
                return Ok(None);
            }
            real.push(component);
            self.note_attributes(&real);
            match fs::read_link(&real) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_SYMLINKS {
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

    fn note_attributes(&mut self, path: &Path) {
        if !self.attributes.contains_key(path)
            && let Some(attributes) = PathAttributes::of(path)
        {
            self.attributes.insert(path.to_owned(), attributes);
        }
    }

    /// Watches a directory whose path has no links, and records its relevant names. Returns whether
    /// it can be watched.
    fn watch(
        &mut self,
        dir: &Path,
        need: WatchPriority,
        note: impl FnOnce(&mut RelevantNames),
    ) -> Result<bool, MonitorError> {
        if let Some(watched) = self.watched.get(dir) {
            note(self.watches.shared.interests().next(watched));
            return Ok(true);
        }
        if need == WatchPriority::Optional && self.watched.len() >= self.watches.max_watches {
            self.unwatched += 1;
            return Ok(false);
        }
        let inode = match fs::symlink_metadata(dir) {
            Ok(metadata) if metadata.is_dir() => (metadata.dev(), metadata.ino()),
            // The directory vanished, which the watch on its parent reported.
            Ok(_) => return Ok(false),
            Err(error) => return self.handle_unwatchable(dir, need, error),
        };
        let path = self.inodes.entry(inode).or_insert_with(|| dir.to_owned()).clone();
        // Names are recorded before the watch: events for other names are dropped.
        note(self.watches.shared.interests().next(&path));
        if path == dir
            && let Err(error) = self.watches.add(dir, self.anew)
        {
            self.inodes.remove(&inode);
            self.watches.shared.interests().drop_next(dir);
            return self.handle_unwatchable(dir, need, error);
        }
        self.watched.insert(dir.to_owned(), path);
        Ok(true)
    }

    /// Handles a directory that cannot be watched.
    fn handle_unwatchable(
        &mut self,
        dir: &Path,
        need: WatchPriority,
        source: io::Error,
    ) -> Result<bool, MonitorError> {
        let path = dir.to_owned();
        match Errno::from_io_error(&source) {
            // The directory vanished, which the watch on its parent reported.
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(false),
            Some(Errno::NOSPC) if need == WatchPriority::Required => {
                Err(MonitorError::WatchLimit { path, source })
            }
            Some(Errno::ACCESS | Errno::NOSPC | Errno::TIMEDOUT) => {
                self.unwatched += 1;
                Ok(false)
            }
            _ => Err(MonitorError::Watch { path, source }),
        }
    }
}

/// Returns the system error of an error of `notify`.
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

/// Maximum time to wait until `notify` answers a [`WatchRequest`], or reports the event of the
/// [`EventMark`]. Either takes microseconds, or milliseconds behind a full queue of events.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A file in memory that is watched like the directories, to find the end of the event queue: the
/// kernel queues events in order, so all earlier events are handled once `notify` reports an event
/// of this file. Without `/proc` it has no path and is not watched: events just before a call of
/// the monitor may then be handled only after the call.
struct EventMark {
    file: OwnedFd,
    path: PathBuf,
    state: Mutex<MarkState>,
    seen: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MarkState {
    Unwatched,
    Seen,
    Awaited,
}

impl EventMark {
    fn new() -> Result<Self, io::Error> {
        let file = memfd_create("monitor", MemfdFlags::CLOEXEC)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        Ok(EventMark { file, path, state: Mutex::new(MarkState::Unwatched), seen: Condvar::new() })
    }

    fn watch(&self, notify: &mut INotifyWatcher) {
        if notify.watch(&self.path, RecursiveMode::NonRecursive).is_ok() {
            self.set(MarkState::Seen);
        }
    }

    /// Returns whether an event is that of the mark. Records that the mark was seen, also if events
    /// were dropped, since its event may be among them.
    fn take(&self, event: &Event) -> bool {
        let is_mark = event.paths.first() == Some(&self.path);
        // If events were dropped, the mark may be among them.
        if is_mark || event.need_rescan() {
            self.set(MarkState::Seen);
            self.seen.notify_all();
        }
        is_mark
    }

    /// Waits until all earlier events are handled, and returns whether they are. If not, they are
    /// handled later.
    fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == MarkState::Unwatched {
            return false;
        }
        *state = MarkState::Awaited;
        // Changes the mode, because since Linux 6.14 a write through such a descriptor causes no
        // event.
        if fchmod(&self.file, Mode::RUSR | Mode::WUSR).is_err() {
            return false;
        }
        let waited =
            self.seen.wait_timeout_while(state, LONGEST_WAIT, |it| *it == MarkState::Awaited);
        waited.is_ok_and(|(_, waited)| !waited.timed_out())
    }

    fn set(&self, state: MarkState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// Errors of following directories.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// No inotify instance can be created.
    #[error("cannot set up inotify")]
    Setup(#[source] io::Error),
    /// All inotify watches of the user are in use.
    #[error("cannot watch {}: all inotify watches of this user are in use", path.display())]
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

    /// Returns a hint for fixing the error.
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
    use std::time::Instant;

    use super::*;
    use crate::hooks::set::is_hook_file_name;

    #[test]
    fn unneeded_watches_are_released() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        let mut watches = WatchSet::new(1024).unwrap();
        let inode = format!(" ino:{:x} ", fs::metadata(dir.path()).unwrap().ino());
        let watched = || {
            let files = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
            let mut files = files.filter_map(|file| fs::read_to_string(file.path()).ok());
            files.any(|file| file.contains(&inode))
        };
        let mut survey = watches.survey();
        survey.program(&program).unwrap();
        assert_eq!(survey.finish(), 0);
        assert!(watched());
        assert_eq!(watches.survey().finish(), 0);
        assert!(!watched());
    }

    #[test]
    fn mark_arrives_after_earlier_events() {
        let dir = tempfile::tempdir().unwrap();
        let mut watches = WatchSet::new(1024).unwrap();
        let mut survey = watches.survey();
        survey.dir(dir.path(), is_hook_file_name).unwrap();
        survey.finish();
        for round in 0..100 {
            assert!(!watches.read().unwrap(), "{round}");
            fs::write(dir.path().join("a.json"), round.to_string()).unwrap();
            assert!(watches.shared.mark.as_ref().unwrap().wait(), "{round}");
            assert!(watches.read().unwrap(), "{round}");
        }
    }

    #[test]
    fn late_watches_are_reported_when_they_are_done() {
        let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let mut watches = WatchSet::new(1024).unwrap();
        let mut survey = watches.survey();
        survey.dir(dir.path(), is_hook_file_name).unwrap();
        survey.finish();
        let shared = Arc::clone(&watches.shared);
        let is_late = |result: io::Result<()>| {
            result.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::TIMEDOUT))
        };
        // The thread of `notify` waits for this lock as soon as it handles the event. Before that,
        // it may still answer some requests.
        let locked = shared.interests();
        fs::write(dir.path().join("a.json"), "{}").unwrap();
        assert!((0..1000).any(|_| is_late(watches.request(other.path(), true))));
        assert!(is_late(watches.request(other.path(), true)));
        drop(locked);
        let deadline = Instant::now() + Duration::from_secs(600);
        while !(watches.read().unwrap() && watches.may_change_all()) {
            assert!(Instant::now() < deadline, "the late watch is not reported");
        }
        watches.request(other.path(), true).unwrap();
    }

    #[test]
    fn thread_ends_with_the_watches() {
        let watches = WatchSet::new(1024).unwrap();
        let shared = Arc::downgrade(&watches.shared);
        drop(watches);
        let deadline = Instant::now() + Duration::from_secs(600);
        while shared.strong_count() > 0 {
            assert!(Instant::now() < deadline, "the thread of notify goes on");
            thread::yield_now();
        }
    }
}
