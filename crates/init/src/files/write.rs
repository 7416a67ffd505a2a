//! Application of another tree's changes to this one.

use std::ffi::CString;
use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;

use super::remove::{clear_directory, remove};
use super::{MAX_DEPTH, PART, errno, is_missing, to_c_string};
use crate::at;
use crate::frames::files::{
    FileAction, FileEntry, FileEntryKind, FileEntryState, FileProblem, FileScope, FileTime,
    ScopePosition, TreeChange, is_beneath,
};

const ENOTDIR: i32 = 20;
const EPERM: i32 = 1;
const EEXIST: i32 = 17;
/// Mode of directories that were not sent, and of the topmost ones on the host.
const DEFAULT_DIRECTORY: u32 = 0o755;
/// Permissions that directories always give to their owner.
const OWNER_ALL: u32 = 0o700;
const SET_ID: u32 = 0o6000;

/// Tree to which changes are applied.
pub struct WritableTree<'s> {
    root: OwnedFd,
    /// Paths that may change. The topmost included directories, and those above them, stay
    /// directories.
    scope: &'s FileScope,
    /// Open directories on the path to the last file, with their names.
    open: Vec<(CString, OwnedFd)>,
    writer: WriterRole,
    /// Name of the incomplete file, in the directory of the final one.
    part: CString,
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
    /// The open file; `None` after a failed write, when further data is ignored.
    file: Option<File>,
    written_bytes: u64,
}

impl<'s> WritableTree<'s> {
    /// Returns the tree below a directory, for changes within a scope.
    pub fn new(root: OwnedFd, scope: &'s FileScope, writer: WriterRole) -> Self {
        let mut part = PART.to_vec();
        if writer == WriterRole::Agent {
            part.extend_from_slice(std::process::id().to_string().as_bytes());
        }
        let part = CString::new(part).expect("it has no NUL");
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
                let begun = self.begin(&path, &content);
                let (written_bytes, failed) = (content.len() as u64, begun.is_err());
                let (file, error) =
                    begun.map_or_else(|e| (None, Some(e)), |file| (Some(file), None));
                let pending = PendingFile { path, state, file, written_bytes };
                if is_whole && !failed {
                    return self.complete(pending).map(Some);
                }
                self.file = (!is_whole).then_some(pending);
                error.map_or(Ok(None), Err)
            }
            TreeChange::Data(bytes) => {
                let Some(pending) = &mut self.file else { return Ok(None) };
                let Some(file) = &mut pending.file else { return Ok(None) };
                if let Err(error) = file.write_all(&bytes) {
                    pending.file = None;
                    self.drop_part();
                    return Err(error);
                }
                pending.written_bytes += bytes.len() as u64;
                Ok(None)
            }
            TreeChange::End { is_whole } => match self.file.take() {
                Some(pending) if is_whole && pending.file.is_some() => {
                    self.complete(pending).map(Some)
                }
                _ => {
                    self.drop_part();
                    Ok(None)
                }
            },
            TreeChange::Link { path, time, target } => {
                self.check(&path, FileEntryKind::Link)?;
                let size_bytes = target.len() as u64;
                self.link(&path, time, target)?;
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
        is_meant.then_some(()).ok_or_else(|| io::Error::from_raw_os_error(EPERM))
    }

    /// Creates an incomplete file beside the final one.
    fn begin(&mut self, path: &[u8], content: &[u8]) -> io::Result<File> {
        self.check(path, FileEntryKind::File)?;
        let part = self.part.clone();
        let (dir, _) = self.parent(path)?;
        let mut file = match at::create_file(dir, &part) {
            // Left over from an interrupted exchange.
            Err(error) if error.raw_os_error() == Some(EEXIST) => {
                remove(dir, &part)?;
                at::create_file(dir, &part)?
            }
            file => file?,
        };
        if let Err(error) = file.write_all(content) {
            let _ = at::remove_file(dir, &part);
            return Err(error);
        }
        Ok(file)
    }

    /// Renames a complete file to its final name.
    fn complete(&mut self, pending: PendingFile) -> io::Result<AppliedChange> {
        let PendingFile { path, mut state, file, written_bytes } = pending;
        let (writer, part) = (self.writer, self.part.clone());
        let result = file.ok_or_else(|| io::ErrorKind::NotFound.into()).and_then(|file| {
            let (dir, name) = self.parent(&path)?;
            let mut mode = state.mode;
            if writer == WriterRole::Host && mode & SET_ID != 0 {
                let before = at::stat(dir, &name).ok();
                let before = before.filter(|stat| stat.kind == Some(FileEntryKind::File));
                mode &= !SET_ID | before.map_or(0, |stat| stat.mode);
            }
            file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
            let FileTime { seconds, nanoseconds } = state.time;
            at::set_open_time(&file, (seconds, nanoseconds))?;
            drop(file);
            replace(dir, &part, &name)
        });
        if let Err(error) = result {
            self.drop_part();
            return Err(error);
        }
        state.size_bytes = written_bytes;
        Ok(AppliedChange::Entry(FileEntry { path, state }))
    }

    fn drop_part(&mut self) {
        let dir = self.open.last().map_or(self.root.as_fd(), |(_, dir)| dir.as_fd());
        let _ = at::remove_file(dir, &self.part);
    }

    fn link(&mut self, path: &[u8], time: FileTime, target: Vec<u8>) -> io::Result<()> {
        let target = to_c_string(&target)?;
        let part = self.part.clone();
        let (dir, name) = self.parent(path)?;
        if let Err(error) = at::make_link(&target, dir, &part) {
            if error.raw_os_error() != Some(EEXIST) {
                return Err(error);
            }
            remove(dir, &part)?;
            at::make_link(&target, dir, &part)?;
        }
        // Not all file systems store times of links.
        let _ = at::set_time(dir, &part, (time.seconds, time.nanoseconds));
        replace(dir, &part, &name)
    }

    /// Creates a directory, or changes its mode; returns the mode to record, `None` if the
    /// directory stays as it is.
    fn directory(&mut self, path: &[u8], sent: u32) -> io::Result<Option<u32>> {
        let is_root = self.scope.position(path) == ScopePosition::Root;
        let is_runners = is_root && self.writer == WriterRole::Host;
        let sent = if is_runners { DEFAULT_DIRECTORY } else { sent };
        let (dir, name) = self.parent(path)?;
        let mode = sent & 0o777 | OWNER_ALL;
        let is_new = match at::make_directory(dir, &name, mode) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() != Some(EEXIST) => return Err(error),
            Err(_) if at::stat(dir, &name)?.kind == Some(FileEntryKind::Directory) => false,
            Err(_) if is_root => return Err(io::Error::from_raw_os_error(ENOTDIR)),
            Err(_) => {
                remove(dir, &name)?;
                at::make_directory(dir, &name, mode)?;
                true
            }
        };
        if is_runners && !is_new {
            return Ok(None);
        }
        let made = File::from(at::open_directory(dir, &name)?);
        let before = at::stat_open(&made)?.mode;
        if before & 0o777 != mode {
            match made.set_permissions(Permissions::from_mode(before & 0o7000 | mode)) {
                // The directory belongs to another user, but can be used as it is.
                Err(error) if !is_new && error.raw_os_error() == Some(EPERM) => {}
                result => result?,
            }
        }
        Ok(Some(sent))
    }

    fn remove_entry(&mut self, path: &[u8]) -> io::Result<()> {
        let position = self.scope.position(path);
        let parent = self.reach(path, false);
        let (dir, name) = match parent {
            Err(error) if is_missing(&error) || error.raw_os_error() == Some(ENOTDIR) => {
                return Ok(());
            }
            parent => parent?,
        };
        match position {
            ScopePosition::Within => remove(dir, &name),
            ScopePosition::Root => match at::open_directory(dir, &name) {
                Ok(root) => clear_directory(root),
                Err(error) if is_missing(&error) => Ok(()),
                Err(error) => Err(error),
            },
            ScopePosition::Above | ScopePosition::Outside => {
                Err(io::Error::from_raw_os_error(EPERM))
            }
        }
    }

    /// Returns the directory of a path, and the name in it; creates missing directories.
    fn parent(&mut self, path: &[u8]) -> io::Result<(BorrowedFd<'_>, CString)> {
        self.reach(path, true)
    }

    fn reach(&mut self, path: &[u8], may_make: bool) -> io::Result<(BorrowedFd<'_>, CString)> {
        let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let name = to_c_string(names.pop().unwrap_or_default())?;
        if names.len() > MAX_DEPTH {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let open = self.open.iter().zip(&names);
        let common = open.take_while(|((open, _), name)| open.as_bytes() == **name).count();
        self.open.truncate(common);
        for name in &names[common..] {
            let name = to_c_string(name)?;
            let above = self.open.last().map_or(self.root.as_fd(), |(_, dir)| dir.as_fd());
            let dir = match at::open_directory(above, &name) {
                Err(error) if may_make && is_missing(&error) => {
                    at::make_directory(above, &name, DEFAULT_DIRECTORY)?;
                    at::open_directory(above, &name)?
                }
                dir => dir?,
            };
            self.open.push((name, dir));
        }
        let dir = self.open.last().map_or(self.root.as_fd(), |(_, dir)| dir.as_fd());
        Ok((dir, name))
    }
}

impl Drop for WritableTree<'_> {
    fn drop(&mut self) {
        if self.file.is_some() {
            self.drop_part();
        }
    }
}

/// Renames an incomplete file, replacing a file or directory.
fn replace(dir: BorrowedFd<'_>, part: &CString, name: &CString) -> io::Result<()> {
    if at::rename(dir, part, name).is_ok() {
        return Ok(());
    }
    remove(dir, name)?;
    at::rename(dir, part, name)
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
