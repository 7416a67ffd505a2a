//! Application of another tree's changes to this one.

use std::fs::File;
use std::io::{self, Write as _};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, fstat, futimens, mkdirat,
    renameat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::remove::{clear_directory, remove};
use super::{MAX_DEPTH, PART, errno, is_gone, open_at, stat_at};
use crate::frames::files::{
    FileAction, FileEntry, FileEntryKind, FileEntryState, FileProblem, FileScope, FileTime,
    ScopePosition, TreeChange, is_beneath,
};

/// Mode of directories that were not sent, and of the topmost ones on the host.
const DEFAULT_DIRECTORY: u32 = 0o755;
/// Permissions that directories always give to their owner.
const OWNER_ALL: u32 = 0o700;
const SET_ID: Mode = Mode::SUID.union(Mode::SGID);

/// Tree to which changes are applied.
pub struct WritableTree<'s> {
    root: OwnedFd,
    /// Paths that may change. The topmost included directories, and those above them, stay
    /// directories.
    scope: &'s FileScope,
    /// Open directories on the path to the last file, with their names.
    open: Vec<(Vec<u8>, OwnedFd)>,
    writer: WriterRole,
    /// Name of the incomplete file, in the directory of the final one.
    part: Vec<u8>,
    /// The last file; `None` once it is complete or its writing has failed: further data is ignored.
    file: Option<PendingFile>,
}

/// Role of the process that writes a tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WriterRole {
    /// An agent in a container. Files get the set-user-ID and set-group-ID bits that were sent. The
    /// agent of a lost stream may still write while the next one does, so the names of their
    /// incomplete files differ.
    Agent,
    /// The hook on the host. Files keep set-user-ID and set-group-ID bits only if they had them
    /// before. The topmost included directories keep their mode: they are the runner's, and
    /// everyone may be able to write to those of the container.
    Host,
}

/// Applied change, with the file's state at the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppliedChange {
    Entry(FileEntry),
    Removed(Vec<u8>),
}

struct PendingFile {
    path: Vec<u8>,
    state: FileEntryState,
    file: File,
    written_bytes: u64,
}

impl<'s> WritableTree<'s> {
    /// Returns the tree below a directory, for changes within a scope.
    pub fn new(root: OwnedFd, scope: &'s FileScope, writer: WriterRole) -> Self {
        let mut part = PART.to_vec();
        if writer == WriterRole::Agent {
            part.extend_from_slice(std::process::id().to_string().as_bytes());
        }
        WritableTree { root, scope, open: Vec::new(), writer, part, file: None }
    }

    /// Applies a change. Returns it once it is complete, and `None` before: a file may be sent in
    /// parts.
    pub fn apply(&mut self, change: TreeChange) -> Result<Option<AppliedChange>, FileProblem> {
        let path = change.path().map(<[u8]>::to_vec);
        // The sender has not ended the file before.
        if path.is_some() && self.file.take().is_some() {
            self.drop_part();
        }
        let action = match &change {
            TreeChange::Remove(_) => FileAction::Remove,
            _ => FileAction::Write,
        };
        let pending = self.file.as_ref().map(|file| file.path.clone());
        self.make(change).map_err(|error| FileProblem {
            action,
            path: path.or(pending).unwrap_or_default(),
            errno: errno(&error),
        })
    }

    fn make(&mut self, change: TreeChange) -> io::Result<Option<AppliedChange>> {
        match change {
            TreeChange::Directory { path, mode } => {
                self.check(&path, FileEntryKind::Directory)?;
                let Some(mode) = self.directory(&path, mode)? else { return Ok(None) };
                let time = FileTime::default();
                let state =
                    FileEntryState { kind: FileEntryKind::Directory, mode, size_bytes: 0, time };
                Ok(Some(AppliedChange::Entry(FileEntry { path, state })))
            }
            TreeChange::File { path, state, content, is_whole } => {
                let state = FileEntryState { kind: FileEntryKind::File, ..state };
                let file = self.begin(&path, &content)?;
                let pending =
                    PendingFile { path, state, file, written_bytes: content.len() as u64 };
                if is_whole {
                    return self.complete(pending).map(Some);
                }
                self.file = Some(pending);
                Ok(None)
            }
            TreeChange::Data(bytes) => {
                let Some(pending) = &mut self.file else { return Ok(None) };
                if let Err(error) = pending.file.write_all(&bytes) {
                    self.file = None;
                    self.drop_part();
                    return Err(error);
                }
                pending.written_bytes += bytes.len() as u64;
                Ok(None)
            }
            TreeChange::End { is_whole } => match self.file.take() {
                Some(pending) if is_whole => self.complete(pending).map(Some),
                _ => {
                    self.drop_part();
                    Ok(None)
                }
            },
            TreeChange::Link { path, time, target } => {
                self.check(&path, FileEntryKind::Link)?;
                let size_bytes = target.len() as u64;
                self.link(&path, time, &target)?;
                let state =
                    FileEntryState { kind: FileEntryKind::Link, mode: 0o777, size_bytes, time };
                Ok(Some(AppliedChange::Entry(FileEntry { path, state })))
            }
            TreeChange::Remove(path) => {
                self.remove_entry(&path)?;
                Ok(Some(AppliedChange::Removed(path)))
            }
        }
    }

    fn check(&self, path: &[u8], kind: FileEntryKind) -> io::Result<()> {
        let is_meant = self.scope.has(path, kind);
        is_meant.then_some(()).ok_or_else(|| Errno::PERM.into())
    }

    /// Creates an incomplete file beside the final one.
    fn begin(&mut self, path: &[u8], content: &[u8]) -> io::Result<File> {
        self.check(path, FileEntryKind::File)?;
        let part = self.part.clone();
        let (dir, _) = self.reach(path, true)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = File::from(create_part(dir, &part, || open_at(dir, &part, flags))?);
        if let Err(error) = file.write_all(content) {
            self.drop_part();
            return Err(error);
        }
        Ok(file)
    }

    /// Renames a complete file to its final name.
    fn complete(&mut self, pending: PendingFile) -> io::Result<AppliedChange> {
        let PendingFile { path, mut state, file, written_bytes } = pending;
        if let Err(error) = self.install(&path, state, file) {
            self.drop_part();
            return Err(error);
        }
        state.size_bytes = written_bytes;
        Ok(AppliedChange::Entry(FileEntry { path, state }))
    }

    fn install(&mut self, path: &[u8], state: FileEntryState, file: File) -> io::Result<()> {
        let (writer, part) = (self.writer, self.part.clone());
        let (dir, name) = self.reach(path, true)?;
        let mut mode = Mode::from_raw_mode(state.mode & 0o7777);
        if writer == WriterRole::Host && mode.intersects(SET_ID) {
            let before = stat_at(dir, name).ok().flatten();
            let before = before.filter(|before| before.kind == FileEntryKind::File);
            mode &= !SET_ID | Mode::from_raw_mode(before.map_or(0, |before| before.mode));
        }
        fchmod(&file, mode)?;
        futimens(&file, &timestamps(state.time))?;
        drop(file);
        replace(dir, &part, name)
    }

    fn drop_part(&mut self) {
        let _ = unlinkat(self.innermost(), &self.part, AtFlags::empty());
    }

    fn link(&mut self, path: &[u8], time: FileTime, target: &[u8]) -> io::Result<()> {
        let part = self.part.clone();
        let (dir, name) = self.reach(path, true)?;
        create_part(dir, &part, || symlinkat(target, dir, &part))?;
        // Not all file systems store times of links.
        let _ = utimensat(dir, &part, &timestamps(time), AtFlags::SYMLINK_NOFOLLOW);
        replace(dir, &part, name)
    }

    /// Creates a directory, or changes its mode; returns the mode to record, `None` if the
    /// directory stays as it is.
    fn directory(&mut self, path: &[u8], sent: u32) -> io::Result<Option<u32>> {
        let is_root = self.scope.position(path) == ScopePosition::Root;
        let is_runners = is_root && self.writer == WriterRole::Host;
        let sent = if is_runners { DEFAULT_DIRECTORY } else { sent };
        let (dir, name) = self.reach(path, true)?;
        let mode = sent & 0o777 | OWNER_ALL;
        let make = || mkdirat(dir, name, Mode::from_raw_mode(mode));
        let is_directory = |found: FileEntryState| found.kind == FileEntryKind::Directory;
        let is_new = match make() {
            Err(Errno::EXIST) if stat_at(dir, name)?.is_some_and(is_directory) => false,
            Err(Errno::EXIST) if is_root => return Err(Errno::NOTDIR.into()),
            Err(Errno::EXIST) => {
                remove(dir, name)?;
                make()?;
                true
            }
            made => made.map(|()| true)?,
        };
        if is_runners && !is_new {
            return Ok(None);
        }
        let made = open_at(dir, name, OFlags::DIRECTORY)?;
        let before = fstat(&made)?.st_mode;
        if before & 0o777 != mode {
            match fchmod(&made, Mode::from_raw_mode(before & 0o7000 | mode)) {
                // The directory belongs to another user, but can be used as it is.
                Err(Errno::PERM) if !is_new => {}
                result => result?,
            }
        }
        Ok(Some(sent))
    }

    fn remove_entry(&mut self, path: &[u8]) -> io::Result<()> {
        let position = self.scope.position(path);
        let (dir, name) = match self.reach(path, false) {
            Err(error) if is_gone(&error) => return Ok(()),
            reached => reached?,
        };
        match position {
            ScopePosition::Within => remove(dir, name),
            ScopePosition::Root => match open_at(dir, name, OFlags::DIRECTORY) {
                Err(Errno::NOENT) => Ok(()),
                root => clear_directory(&root?),
            },
            ScopePosition::Above | ScopePosition::Outside => Err(Errno::PERM.into()),
        }
    }

    /// Returns the directory of a path, and the name in it. Creates missing directories if `may_make` is set.
    fn reach<'p>(
        &mut self,
        path: &'p [u8],
        may_make: bool,
    ) -> io::Result<(BorrowedFd<'_>, &'p [u8])> {
        let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let name = names.pop().unwrap_or_default();
        if names.len() > MAX_DEPTH {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let open = self.open.iter().zip(&names);
        let common = open.take_while(|((open, _), name)| open.as_slice() == **name).count();
        self.open.truncate(common);
        for name in &names[common..] {
            let above = self.innermost();
            let dir = match open_at(above, name, OFlags::DIRECTORY) {
                Err(Errno::NOENT) if may_make => {
                    mkdirat(above, *name, Mode::from_raw_mode(DEFAULT_DIRECTORY))?;
                    open_at(above, name, OFlags::DIRECTORY)?
                }
                dir => dir?,
            };
            self.open.push((name.to_vec(), dir));
        }
        Ok((self.innermost(), name))
    }

    fn innermost(&self) -> BorrowedFd<'_> {
        self.open.last().map_or(self.root.as_fd(), |(_, dir)| dir.as_fd())
    }
}

impl Drop for WritableTree<'_> {
    fn drop(&mut self) {
        if self.file.is_some() {
            self.drop_part();
        }
    }
}

/// Creates an incomplete file, in place of one that an interrupted exchange has left.
fn create_part<T>(
    dir: BorrowedFd<'_>,
    part: &[u8],
    create: impl Fn() -> rustix::io::Result<T>,
) -> io::Result<T> {
    match create() {
        Err(Errno::EXIST) => {
            remove(dir, part)?;
            Ok(create()?)
        }
        created => Ok(created?),
    }
}

/// Renames an incomplete file, replacing a file or directory.
fn replace(dir: BorrowedFd<'_>, part: &[u8], name: &[u8]) -> io::Result<()> {
    if renameat(dir, part, dir, name).is_err() {
        remove(dir, name)?;
        renameat(dir, part, dir, name)?;
    }
    Ok(())
}

fn timestamps(modified: FileTime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: modified.seconds,
            tv_nsec: modified.nanoseconds.into(),
        },
    }
}

impl AppliedChange {
    /// Returns whether this change removes or replaces the earlier entry of a path.
    pub fn replaces(&self, path: &[u8]) -> bool {
        match self {
            AppliedChange::Entry(entry) => {
                entry.path == path
                    || entry.state.kind != FileEntryKind::Directory && is_beneath(path, &entry.path)
            }
            AppliedChange::Removed(removed) => removed == path || is_beneath(path, removed),
        }
    }

    /// Returns the path of the change.
    pub fn path(&self) -> &[u8] {
        match self {
            AppliedChange::Entry(entry) => &entry.path,
            AppliedChange::Removed(path) => path,
        }
    }
}
