//! The frames by which files are exchanged with the agent of a container.
//!
//! Whoever has the files compares them with what it was told of the last exchange, and sends what has
//! changed since, in the order of [`order`]. Times are compared with each other only if one comes of
//! the other, and only for being equal: clocks do not matter.
//!
//! | kind | from the agent | | kind | from the host |
//! |---|---|---|---|---|
//! | `08` | entries of a list | | `87` | put: into which directory |
//! | `10` | directory | | `88` | get: from which directory, of what in it |
//! | `11` | file: its state and its first bytes | | `90` | directory |
//! | `12` | further bytes of the file | | `91` | file: its state and its first bytes |
//! | `13` | end of the file | | `92` | further bytes of the file |
//! | `14` | symbolic link | | `93` | end of the file |
//! | `15` | removed, with all that was beneath | | `94` | symbolic link |
//! | `16` | done: what was looked at | | `95` | removed, with all that was beneath |
//! | `17` | mark: all before it is done | | `96` | done |
//! | `18` | problem with one file | | `97` | mark |
//! | | | | `98` | entries of the last exchange; none: that was all |
//! | | | | `9a` | list: which directory, of what in it |
//! | | | | `9b` | read: one file of the container, at most so many bytes |
//!
//! - **put**: the host sends changes, marks between them, and `done`. The agent answers marks with
//!   themselves, tells of problems, and answers `done` when everything is done.
//! - **get**: the host sends the entries of the last exchange meanwhile. The agent sends changes and
//!   problems, and `done`.
//! - **list**: the agent sends entries and problems, and `done`.
//! - **read**: the agent sends a file, or a problem, and `done`. Links are followed: all that can be read
//!   there is the container's.

mod entry;

use super::values::{Reader, Writer};
use super::{FrameError, HEADER_BYTES};

use entry::checked_path;
pub use entry::{Entry, Kind, Place, Scope, State, Time, is_beneath, order};

/// The most bytes of a file in one frame.
pub const DATA_BYTES: usize = 64 << 10;
/// The longest payload of these frames, in both directions.
pub const MAX_FILES_BYTES: usize = 128 << 10;
/// How many bytes of entries go in one frame, but for the last of them.
pub const ENTRIES_BYTES: usize = 32 << 10;
/// The bit that tells a host's frame from the agent's.
const FROM_HOST: u8 = 0x80;

/// Which end a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Agent,
    Host,
}

impl Sender {
    fn bit(self) -> u8 {
        match self {
            Sender::Agent => 0,
            Sender::Host => FROM_HOST,
        }
    }
}

/// Something that differs from the last exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Directory {
        path: Vec<u8>,
        mode: u32,
    },
    /// A file, with its first bytes, and whether that are all. How many there are is what comes, not
    /// what the state says: the file may have changed meanwhile.
    File {
        path: Vec<u8>,
        state: State,
        content: Vec<u8>,
        is_whole: bool,
    },
    /// Further bytes of the last file.
    Data(Vec<u8>),
    /// No further bytes: the file is complete, or else is no file.
    End {
        is_whole: bool,
    },
    Link {
        path: Vec<u8>,
        time: Time,
        target: Vec<u8>,
    },
    Remove(Vec<u8>),
}

/// What the host asks of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesRequest {
    Put { root: Vec<u8> },
    Get { root: Vec<u8>, scope: Scope },
    List { root: Vec<u8>, scope: Scope },
    Read { path: Vec<u8>, max_bytes: u64 },
    Change(Change),
    Entries(Vec<Entry>),
    Mark(u32),
    Done,
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilesAnswer {
    Entries(Vec<Entry>),
    Change(Change),
    Done(Counts),
    Mark(u32),
    Problem(Problem),
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files, directories and links.
    pub entries: u64,
    /// Sockets, pipes and devices, and links where there may be none.
    pub skipped: u64,
}

/// What could not be done to one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub action: Action,
    pub path: Vec<u8>,
    /// The kernel's error number, or 0: too deep, or no file that can be exchanged.
    pub errno: i32,
}

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    List,
    Read,
    Write,
    Remove,
}

const ACTIONS: [Action; 4] = [Action::List, Action::Read, Action::Write, Action::Remove];

impl Change {
    fn write(&self, out: &mut Writer) -> u8 {
        match self {
            Change::Directory { path, mode } => {
                out.bytes(path);
                out.u32(*mode);
                0x10
            }
            Change::File { path, state, content, is_whole } => {
                out.bytes(path);
                state.write(out);
                out.0.push(u8::from(*is_whole));
                out.bytes(content);
                0x11
            }
            Change::Data(bytes) => {
                out.0.extend_from_slice(bytes);
                0x12
            }
            Change::End { is_whole } => {
                out.0.push(u8::from(*is_whole));
                0x13
            }
            Change::Link { path, time, target } => {
                out.bytes(path);
                time.write(out);
                out.bytes(target);
                0x14
            }
            Change::Remove(path) => {
                out.bytes(path);
                0x15
            }
        }
    }

    /// Reads a change of a kind without its direction; none if it is another kind.
    fn read(kind: u8, from: &mut Reader<'_>) -> Result<Option<Self>, FrameError> {
        Ok(Some(match kind {
            0x10 => {
                let (path, mode) = (checked_path(from.bytes()?)?, from.u32()?);
                Change::Directory { path, mode: mode & 0o7777 }
            }
            0x11 => Change::File {
                path: checked_path(from.bytes()?)?,
                state: State::read(from)?,
                is_whole: boolean(from)?,
                content: from.bytes()?,
            },
            0x12 => Change::Data(rest(from)),
            0x13 => Change::End { is_whole: boolean(from)? },
            0x14 => {
                let (path, time, target) =
                    (checked_path(from.bytes()?)?, Time::read(from)?, from.bytes()?);
                if target.is_empty() || target.len() >= super::MAX_PATH_BYTES || target.contains(&0)
                {
                    return Err(FrameError::Invalid("target of a link"));
                }
                Change::Link { path, time, target }
            }
            0x15 => Change::Remove(checked_path(from.bytes()?)?),
            _ => return Ok(None),
        }))
    }

    /// Returns the path, if it is not about the last one.
    #[must_use]
    pub fn path(&self) -> Option<&[u8]> {
        match self {
            Change::Directory { path, .. }
            | Change::File { path, .. }
            | Change::Link { path, .. }
            | Change::Remove(path) => Some(path),
            Change::Data(_) | Change::End { .. } => None,
        }
    }

    /// Appends the frame.
    pub fn encode(&self, sender: Sender, out: &mut Vec<u8>) {
        frame(out, |out| self.write(out) | sender.bit());
    }

    /// Appends the frame of further bytes of a file.
    pub fn encode_data(bytes: &[u8], sender: Sender, out: &mut Vec<u8>) {
        frame(out, |out| {
            out.0.extend_from_slice(bytes);
            0x12 | sender.bit()
        });
    }
}

fn boolean(from: &mut Reader<'_>) -> Result<bool, FrameError> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(FrameError::Invalid("truth value")),
    }
}

fn rest(from: &mut Reader<'_>) -> Vec<u8> {
    std::mem::take(&mut from.0).to_vec()
}

fn write_entries(entries: &[Entry], out: &mut Writer) {
    for entry in entries {
        entry.write(out);
    }
}

fn read_entries(from: &mut Reader<'_>) -> Result<Vec<Entry>, FrameError> {
    let mut entries = Vec::new();
    while !from.0.is_empty() {
        entries.push(Entry::read(from)?);
    }
    Ok(entries)
}

/// Appends a frame that `write` writes the payload of and returns the kind of.
fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Writer) -> u8) {
    let begin = out.len();
    let mut writer = Writer(std::mem::take(out));
    writer.0.extend([0; HEADER_BYTES]);
    let kind = write(&mut writer);
    *out = writer.0;
    let length = u32::try_from(out.len() - begin - HEADER_BYTES).unwrap_or(u32::MAX);
    out[begin] = kind;
    out[begin + 1..begin + HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
}

impl FilesRequest {
    /// Returns whether frames of this kind are the host's of files.
    #[must_use]
    pub fn is_kind(kind: u8) -> bool {
        matches!(kind, 0x87 | 0x88 | 0x90..=0x9f)
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |out| match self {
            FilesRequest::Put { root } => {
                out.bytes(root);
                0x87
            }
            FilesRequest::Get { root, scope } => {
                out.bytes(root);
                scope.write(out);
                0x88
            }
            FilesRequest::Change(change) => change.write(out) | FROM_HOST,
            FilesRequest::Done => 0x96,
            FilesRequest::Mark(number) => {
                out.u32(*number);
                0x97
            }
            FilesRequest::Entries(entries) => {
                write_entries(entries, out);
                0x98
            }
            FilesRequest::List { root, scope } => {
                out.bytes(root);
                scope.write(out);
                0x9a
            }
            FilesRequest::Read { path, max_bytes } => {
                out.bytes(path);
                out.0.extend(max_bytes.to_le_bytes());
                0x9b
            }
        });
    }

    /// Reads a request of a kind and payload.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader(payload);
        let request = match kind {
            0x87 => FilesRequest::Put { root: checked_root(from.bytes()?)? },
            0x88 => FilesRequest::Get {
                root: checked_root(from.bytes()?)?,
                scope: Scope::read(&mut from)?,
            },
            0x96 => FilesRequest::Done,
            0x97 => FilesRequest::Mark(from.u32()?),
            0x98 => FilesRequest::Entries(read_entries(&mut from)?),
            0x9a => FilesRequest::List {
                root: checked_root(from.bytes()?)?,
                scope: Scope::read(&mut from)?,
            },
            0x9b => {
                FilesRequest::Read { path: checked_root(from.bytes()?)?, max_bytes: from.u64()? }
            }
            kind if kind & FROM_HOST != 0 => Change::read(kind & !FROM_HOST, &mut from)?
                .map(FilesRequest::Change)
                .ok_or(FrameError::UnknownKind(kind))?,
            kind => return Err(FrameError::UnknownKind(kind)),
        };
        from.end()?;
        Ok(request)
    }
}

/// Checks a path that the host chose: absolute, without NUL.
fn checked_root(path: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let is_path = path.first() == Some(&b'/') && !path.contains(&0);
    (is_path && path.len() < super::MAX_PATH_BYTES)
        .then_some(path)
        .ok_or(FrameError::Invalid("path: expected an absolute path"))
}

impl FilesAnswer {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        frame(out, |out| match self {
            FilesAnswer::Entries(entries) => {
                write_entries(entries, out);
                0x08
            }
            FilesAnswer::Change(change) => change.write(out),
            FilesAnswer::Done(counts) => {
                out.0.extend(counts.entries.to_le_bytes());
                out.0.extend(counts.skipped.to_le_bytes());
                0x16
            }
            FilesAnswer::Mark(number) => {
                out.u32(*number);
                0x17
            }
            FilesAnswer::Problem(problem) => {
                let known = (0_u8..).zip(ACTIONS).find(|(_, action)| *action == problem.action);
                out.0.push(known.map_or(0, |(number, _)| number));
                out.bytes(&problem.path);
                out.0.extend(problem.errno.to_le_bytes());
                0x18
            }
        });
    }

    /// Reads an answer of a kind and payload.
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError> {
        let mut from = Reader(payload);
        let answer = match kind {
            0x08 => FilesAnswer::Entries(read_entries(&mut from)?),
            0x16 => FilesAnswer::Done(Counts { entries: from.u64()?, skipped: from.u64()? }),
            0x17 => FilesAnswer::Mark(from.u32()?),
            0x18 => {
                let action = ACTIONS.get(usize::from(from.u8()?)).copied();
                let action = action.ok_or(FrameError::Invalid("action"))?;
                FilesAnswer::Problem(Problem { action, path: from.bytes()?, errno: from.i32()? })
            }
            kind => Change::read(kind, &mut from)?
                .map(FilesAnswer::Change)
                .ok_or(FrameError::UnknownKind(kind))?,
        };
        from.end()?;
        Ok(answer)
    }
}
