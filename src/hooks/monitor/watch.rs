//! inotify watches on everything that decides which hooks there are.
//!
//! A path means something else when any of its components does, so each directory on the way to a
//! hook directory, a hook file or a program is watched, with the names in it that matter. A missing
//! directory needs nothing else: the nearest one that exists is watched for its name. Links are
//! followed component by component, as the kernel does, with a watch at each step.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::MonitorError;
use crate::hooks::set::is_hook_file_name;

/// As many links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// What happens to names in a directory.
const NAMES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

/// The same, and what is written to the files in it.
const CONTENTS: WatchFlags = NAMES.union(WatchFlags::MODIFY).union(WatchFlags::CLOSE_WRITE);

/// Events are a few dozen bytes each; one read takes hundreds of them.
const BUFFER_BYTES: usize = 16 << 10;

/// So that somebody who writes without end cannot keep us here.
const MAX_EVENTS_AT_ONCE: usize = 1 << 16;

/// The watches of a monitor.
pub(super) struct Watches {
    inotify: OwnedFd,
    /// What matters in a directory, by watch descriptor.
    interests: HashMap<i32, Interest>,
    max_watches: usize,
    buffer: Box<[MaybeUninit<u8>]>,
}

/// Which names in a directory matter.
#[derive(Default)]
struct Interest {
    hook_files: bool,
    names: HashSet<OsString>,
}

impl Interest {
    fn is_in(&self, name: &OsStr) -> bool {
        self.names.contains(name) || (self.hook_files && is_hook_file_name(name))
    }
}

impl AsFd for Watches {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Watches {
    pub(super) fn new(max_watches: usize) -> Result<Self, MonitorError> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|errno| MonitorError::Setup(errno.into()))?;
        let buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES].into_boxed_slice();
        Ok(Watches { inotify, interests: HashMap::new(), max_watches, buffer })
    }

    /// Reads the events there are, and tells if one of them matters.
    pub(super) fn read(&mut self) -> Result<bool, MonitorError> {
        let mut matters = false;
        let mut reader = Reader::new(&self.inotify, &mut self.buffer);
        for _ in 0..MAX_EVENTS_AT_ONCE {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(MonitorError::Read(errno.into())),
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                matters = true;
            } else if let Some(interest) = self.interests.get(&event.wd()) {
                matters |= match event.file_name() {
                    Some(name) => interest.is_in(OsStr::from_bytes(name.to_bytes())),
                    None => true,
                };
            }
        }
        Ok(matters)
    }

    /// Starts to work out anew what must be watched. Watches in use stay until [`Survey::finish`].
    pub(super) fn survey(&mut self) -> Survey<'_> {
        Survey { watches: self, interests: HashMap::new(), by_path: HashMap::new(), unwatched: 0 }
    }
}

/// A new set of watches in the making.
pub(super) struct Survey<'w> {
    watches: &'w mut Watches,
    interests: HashMap<i32, Interest>,
    /// Directories by real path, with what is watched there.
    by_path: HashMap<PathBuf, (i32, WatchFlags)>,
    unwatched: usize,
}

/// What to do when there are too many watches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Nothing works without it.
    Must,
    /// A change is noticed late without it.
    May,
}

impl Survey<'_> {
    /// Watches a hook directory, and the files that links in it lead to.
    pub(super) fn hook_dir(&mut self, dir: &Path) -> Result<(), MonitorError> {
        let Some(real) = self.follow(dir, Need::Must)? else { return Ok(()) };
        let Some(interest) = self.watch(&real, CONTENTS, Need::Must)? else { return Ok(()) };
        interest.hook_files = true;
        // Whoever cannot list a directory is told so when it is loaded.
        for entry in fs::read_dir(&real).into_iter().flatten().flatten() {
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !is_link || !is_hook_file_name(&entry.file_name()) {
                continue;
            }
            let Some(file) = self.follow(&entry.path(), Need::May)? else { continue };
            if let (Some(parent), Some(name)) = (file.parent(), file.file_name())
                && let Some(interest) = self.watch(parent, CONTENTS, Need::May)?
            {
                interest.names.insert(name.to_owned());
            }
        }
        Ok(())
    }

    /// Watches whether a file exists.
    pub(super) fn file(&mut self, path: &Path) -> Result<(), MonitorError> {
        self.follow(path, Need::May).map(|_| ())
    }

    /// Puts the new set in place of the old one, and returns how many directories it lacks.
    pub(super) fn finish(self) -> usize {
        for wd in self.watches.interests.keys().filter(|wd| !self.interests.contains_key(wd)) {
            // It fails for directories that are gone: the kernel has removed their watches.
            let _ = inotify::remove_watch(&self.watches.inotify, *wd);
        }
        self.watches.interests = self.interests;
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
            let Some(interest) = self.watch(&real, NAMES, need)? else { return Ok(None) };
            interest.names.insert(component.clone());
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

    /// Watches a directory whose path has no links. Returns none if that cannot be.
    fn watch(
        &mut self,
        dir: &Path,
        flags: WatchFlags,
        need: Need,
    ) -> Result<Option<&mut Interest>, MonitorError> {
        let known = self.by_path.get(dir).copied();
        if let Some((wd, has)) = known
            && has.contains(flags)
        {
            return Ok(Some(self.interests.entry(wd).or_default()));
        }
        if known.is_none() && need == Need::May && self.by_path.len() >= self.watches.max_watches {
            self.unwatched += 1;
            return Ok(None);
        }
        // Another path may lead to the same directory, where more is asked for already.
        match inotify::add_watch(&self.watches.inotify, dir, flags | WatchFlags::MASK_ADD) {
            Ok(wd) => {
                self.by_path.insert(dir.to_owned(), (wd, flags));
                Ok(Some(self.interests.entry(wd).or_default()))
            }
            // It went away, and the watch on its parent has told so.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
            Err(Errno::NOSPC) if need == Need::Must => {
                Err(MonitorError::WatchLimit { path: dir.to_owned(), source: Errno::NOSPC.into() })
            }
            Err(Errno::ACCESS | Errno::NOSPC) => {
                self.unwatched += 1;
                Ok(None)
            }
            Err(errno) => Err(MonitorError::Watch { path: dir.to_owned(), source: errno.into() }),
        }
    }
}

/// Puts the components of a path on a stack, the first one on top.
fn push_components(stack: &mut Vec<OsString>, path: &Path) {
    let components = path.components().filter(|component| *component != Component::CurDir);
    stack.extend(components.rev().map(|component| component.as_os_str().to_owned()));
}
