//! The frames for exchanging files with the agent of a container.
//!
//! The end that has the files compares them with the entries of the last exchange, and sends the
//! changes in the order of [`order`]. Times are compared only with copies of themselves, and only
//! for equality: clocks do not matter.
//!
//! | kind | from either end | | kind | from one end |
//! |---|---|---|---|---|
//! | `90` | directory | | `98` | host: entries of the last exchange; empty at the end |
//! | `91` | file: its state and its first bytes | | `99` | agent: problem with one file |
//! | `92` | further bytes of the file | | `9a` | host: put, target directory |
//! | `93` | end of the file | | `9b` | host: get, source directory and scope |
//! | `94` | symbolic link | | `9c` | host: read, file of the container |
//! | `95` | removed, with everything beneath | | | |
//! | `96` | done: number of skipped files | | | |
//! | `97` | mark: everything before is done | | | |
//!
//! - **put**: the host sends changes, marks between them, and `done`. The agent echoes the marks,
//!   reports problems, and answers `done` when everything is done.
//! - **get**: the host sends the entries of the last exchange meanwhile. The agent sends changes and
//!   problems, and `done`.
//! - **read**: the agent sends the bytes of the file, at most [`DATA_BYTES`], as `92`, or a problem. Links
//!   are followed: all readable files are the container's.

mod entry;

use super::values::{PayloadReader, PayloadWriter};
use super::{FrameError, HEADER_BYTES};

use entry::checked_path;
pub use entry::{
    FileEntry, FileEntryKind, FileEntryState, FileScope, FileTime, ScopePosition, is_beneath, order,
};

/// Maximum number of bytes of a file in one frame.
pub const DATA_BYTES: usize = 64 << 10;
/// Size of entries at which a frame is sent.
pub const ENTRIES_BYTES: usize = 32 << 10;

/// Difference from the last exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeChange {
    Directory {
        path: Vec<u8>,
        mode: u32,
    },
    /// A file with its first bytes; if `is_whole`, these are all. Its size is the number of bytes
    /// sent, not that in the state: the file may have changed meanwhile.
    File {
        path: Vec<u8>,
        state: FileEntryState,
        content: Vec<u8>,
        is_whole: bool,
    },
    /// Further bytes of the last file.
    Data(Vec<u8>),
    /// End of the last file: it is complete, or else discarded.
    End {
        is_whole: bool,
    },
    Link {
        path: Vec<u8>,
        time: FileTime,
        target: Vec<u8>,
    },
    Remove(Vec<u8>),
}

/// Frame of either end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesFrame {
    Change(TreeChange),
    Done {
        /// Number of sockets, pipes and devices, and of links where they are excluded.
        skipped: u64,
    },
    Mark,
    Entries(Vec<FileEntry>),
    Problem(FileProblem),
    Put {
        root: Vec<u8>,
    },
    Get {
        root: Vec<u8>,
        scope: FileScope,
    },
    Read {
        path: Vec<u8>,
    },
}

/// Failed operation on one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    pub action: FileAction,
    pub path: Vec<u8>,
    /// The kernel's error number, or 0: the path is too long or deep, or the file cannot be exchanged.
    pub errno: i32,
}

/// Operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAction {
    List,
    Read,
    Write,
    Remove,
}

/// The operations in the order of their numbers.
const ACTIONS: [FileAction; 4] =
    [FileAction::List, FileAction::Read, FileAction::Write, FileAction::Remove];

impl TreeChange {
    fn write(&self, out: &mut PayloadWriter) -> u8 {
        match self {
            TreeChange::Directory { path, mode } => {
                out.bytes(path);
                out.u32(*mode);
                0x90
            }
            TreeChange::File { path, state, content, is_whole } => {
                out.bytes(path);
                state.write(out);
                out.0.push(u8::from(*is_whole));
                out.bytes(content);
                0x91
            }
            TreeChange::Data(bytes) => {
                out.0.extend_from_slice(bytes);
                0x92
            }
            TreeChange::End { is_whole } => {
                out.0.push(u8::from(*is_whole));
                0x93
            }
            TreeChange::Link { path, time, target } => {
                out.bytes(path);
                time.write(out);
                out.bytes(target);
                0x94
            }
            TreeChange::Remove(path) => {
                out.bytes(path);
                0x95
            }
        }
    }

    fn read(kind: u8, from: &mut PayloadReader<'_>) -> Result<Self, FrameError> {
        Ok(match kind {
            0x90 => {
                let (path, mode) = (checked_path(from.bytes()?)?, from.u32()?);
                TreeChange::Directory { path, mode: mode & 0o7777 }
            }
            0x91 => TreeChange::File {
                path: checked_path(from.bytes()?)?,
                state: FileEntryState::read(from)?,
                is_whole: boolean(from)?,
                content: from.bytes()?,
            },
            0x92 => TreeChange::Data(std::mem::take(&mut from.0).to_vec()),
            0x93 => TreeChange::End { is_whole: boolean(from)? },
            0x94 => {
                let (path, time, target) =
                    (checked_path(from.bytes()?)?, FileTime::read(from)?, from.bytes()?);
                if target.is_empty() || target.len() >= super::MAX_PATH_BYTES || target.contains(&0)
                {
                    return Err(FrameError::Invalid("target of a link"));
                }
                TreeChange::Link { path, time, target }
            }
            0x95 => TreeChange::Remove(checked_path(from.bytes()?)?),
            _ => return Err(FrameError::UnknownKind(kind)),
        })
    }

    /// Returns the path, unless the change is about the last file.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        match self {
            TreeChange::Directory { path, .. }
            | TreeChange::File { path, .. }
            | TreeChange::Link { path, .. }
            | TreeChange::Remove(path) => Some(path),
            TreeChange::Data(_) | TreeChange::End { .. } => None,
        }
    }

    /// Appends the frame of the change to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |out| self.write(out));
    }
}

fn boolean(from: &mut PayloadReader<'_>) -> Result<bool, FrameError> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(FrameError::Invalid("truth value")),
    }
}

fn read_entries(from: &mut PayloadReader<'_>) -> Result<Vec<FileEntry>, FrameError> {
    let mut entries = Vec::new();
    while !from.0.is_empty() {
        entries.push(FileEntry::read(from)?);
    }
    Ok(entries)
}

/// Appends a frame; `write` writes its payload and returns its kind.
fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut PayloadWriter) -> u8) {
    let begin = out.len();
    let mut writer = PayloadWriter(std::mem::take(out));
    writer.0.extend([0; HEADER_BYTES]);
    let kind = write(&mut writer);
    *out = writer.0;
    let length = u32::try_from(out.len() - begin - HEADER_BYTES).unwrap_or(u32::MAX);
    out[begin] = kind;
    out[begin + 1..begin + HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
}

impl FilesFrame {
    /// Returns whether frames of this kind are about files.
    #[must_use]
    pub fn is_kind(kind: u8) -> bool {
        matches!(kind, 0x90..=0x9f)
    }

    /// Appends the encoded frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |out| match self {
            FilesFrame::Change(change) => change.write(out),
            FilesFrame::Done { skipped } => {
                out.0.extend(skipped.to_le_bytes());
                0x96
            }
            FilesFrame::Mark => 0x97,
            FilesFrame::Entries(entries) => {
                entries.iter().for_each(|entry| entry.write(out));
                0x98
            }
            FilesFrame::Problem(problem) => {
                out.0.push(problem.action as u8);
                out.bytes(&problem.path);
                out.0.extend(problem.errno.to_le_bytes());
                0x99
            }
            FilesFrame::Put { root } => {
                out.bytes(root);
                0x9a
            }
            FilesFrame::Get { root, scope } => {
                out.bytes(root);
                scope.write(out);
                0x9b
            }
            FilesFrame::Read { path } => {
                out.bytes(path);
                0x9c
            }
        });
    }

    /// Decodes a frame from its kind and payload.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut from = PayloadReader(payload);
        let frame = match kind {
            0x96 => FilesFrame::Done { skipped: from.u64()? },
            0x97 => FilesFrame::Mark,
            0x98 => FilesFrame::Entries(read_entries(&mut from)?),
            0x99 => {
                let action = ACTIONS.get(usize::from(from.u8()?)).copied();
                let action = action.ok_or(FrameError::Invalid("action"))?;
                let (path, errno) = (from.bytes()?, from.i32()?);
                FilesFrame::Problem(FileProblem { action, path, errno })
            }
            0x9a => FilesFrame::Put { root: checked_root(from.bytes()?)? },
            0x9b => {
                let root = checked_root(from.bytes()?)?;
                FilesFrame::Get { root, scope: FileScope::read(&mut from)? }
            }
            0x9c => FilesFrame::Read { path: checked_root(from.bytes()?)? },
            kind => FilesFrame::Change(TreeChange::read(kind, &mut from)?),
        };
        from.end()?;
        Ok(frame)
    }
}

/// Checks a path that the host chose: absolute, without NUL.
fn checked_root(path: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let is_path = path.first() == Some(&b'/') && !path.contains(&0);
    (is_path && path.len() < super::MAX_PATH_BYTES)
        .then_some(path)
        .ok_or(FrameError::Invalid("path: expected an absolute path"))
}
