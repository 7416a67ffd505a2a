//! What is compared of files, in which order, and which of them are meant.

use std::cmp::Ordering;

use super::super::values::{Reader, Writer};
use super::super::{FrameError, MAX_PATH_BYTES};

/// Longer names do not exist.
const MAX_NAME_BYTES: usize = 255;
const NANOSECONDS: u32 = 1_000_000_000;

/// The kinds of files that are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
}

const KINDS: [Kind; 3] = [Kind::File, Kind::Directory, Kind::Link];

/// When a file was modified last, by the clock of whoever did it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970, or before it.
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// What is compared of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub kind: Kind,
    /// The bits of `0o7777`.
    pub mode: u32,
    pub size_bytes: u64,
    pub time: Time,
}

/// A file beneath a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: Vec<u8>,
    pub state: State,
}

/// Which files beneath a root are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Directories with all that is beneath them; an empty path is the root.
    pub include: Vec<Vec<u8>>,
    /// What is not meant all the same.
    pub exclude: Vec<Vec<u8>>,
    /// Where symbolic links are not meant: somebody follows them there.
    pub without_links: Vec<Vec<u8>>,
}

/// What a path is to a [`Scope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory that is included: it stays one, whatever becomes of what is in it.
    Root,
    Within,
    /// A directory on the way to one that is included.
    Above,
    Outside,
}

impl Time {
    pub(super) fn write(&self, out: &mut Writer) {
        out.0.extend(self.seconds.to_le_bytes());
        out.u32(self.nanoseconds);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, FrameError> {
        let time = Time { seconds: from.u64()?.cast_signed(), nanoseconds: from.u32()? };
        (time.nanoseconds < NANOSECONDS).then_some(time).ok_or(FrameError::Invalid("time"))
    }
}

impl State {
    /// Returns whether two files are taken for the same: of directories only the access of others than
    /// their owner counts, who always may do everything; times of directories and modes of links do not.
    #[must_use]
    pub fn is_same(&self, other: &State) -> bool {
        let modes = |mask: u32| self.mode & mask == other.mode & mask;
        let content = self.size_bytes == other.size_bytes && self.time == other.time;
        self.kind == other.kind
            && match self.kind {
                Kind::File => modes(0o777) && content,
                Kind::Directory => modes(0o077),
                Kind::Link => content,
            }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        let known = (0_u8..).zip(KINDS).find(|(_, kind)| *kind == self.kind);
        out.0.push(known.map_or(0, |(number, _)| number));
        out.u32(self.mode);
        out.0.extend(self.size_bytes.to_le_bytes());
        self.time.write(out);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, FrameError> {
        let kind = KINDS.get(usize::from(from.u8()?)).copied();
        Ok(State {
            kind: kind.ok_or(FrameError::Invalid("kind of file"))?,
            mode: from.u32()? & 0o7777,
            size_bytes: from.u64()?,
            time: Time::read(from)?,
        })
    }
}

impl Entry {
    pub(super) fn write(&self, out: &mut Writer) {
        out.bytes(&self.path);
        self.state.write(out);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, FrameError> {
        Ok(Entry { path: checked_path(from.bytes()?)?, state: State::read(from)? })
    }

    /// Appends the entry, without a frame.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let mut writer = Writer(std::mem::take(out));
        self.write(&mut writer);
        *out = writer.0;
    }

    /// Takes an entry from the front; none if it is not there as a whole.
    pub fn take_from(bytes: &mut &[u8]) -> Result<Option<Entry>, FrameError> {
        let mut from = Reader(bytes);
        match Entry::read(&mut from) {
            Ok(entry) => {
                *bytes = from.0;
                Ok(Some(entry))
            }
            Err(FrameError::Short) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Scope {
    /// Returns the scope of everything beneath the root.
    #[must_use]
    pub fn all() -> Self {
        Scope { include: vec![Vec::new()], ..Scope::default() }
    }

    /// Returns what a path is to this scope.
    #[must_use]
    pub fn place(&self, path: &[u8]) -> Place {
        let covers = |dir: &Vec<u8>| path == dir || is_beneath(path, dir);
        if self.exclude.iter().any(covers) {
            Place::Outside
        } else if self.include.iter().any(|dir| is_beneath(path, dir)) {
            Place::Within
        } else if self.include.iter().any(|dir| path == dir) {
            Place::Root
        } else if self.include.iter().any(|dir| is_beneath(dir, path)) {
            Place::Above
        } else {
            Place::Outside
        }
    }

    /// Returns whether a file of this kind is meant at a path.
    #[must_use]
    pub fn has(&self, path: &[u8], kind: Kind) -> bool {
        match self.place(path) {
            Place::Root => kind == Kind::Directory,
            Place::Within => {
                let is_plain = self.without_links.iter().any(|dir| is_beneath(path, dir));
                !is_plain || kind != Kind::Link
            }
            Place::Above | Place::Outside => false,
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for list in [&self.include, &self.exclude, &self.without_links] {
            out.list(list, |out, path| out.bytes(path));
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, FrameError> {
        let paths = |from: &mut Reader<'_>| {
            from.list(|from| {
                let path = from.bytes()?;
                if path.is_empty() { Ok(path) } else { checked_path(path) }
            })
        };
        Ok(Scope { include: paths(from)?, exclude: paths(from)?, without_links: paths(from)? })
    }
}

/// Compares paths as a walk meets them: a directory, what is in it, and then its next sibling, names
/// byte by byte.
#[must_use]
pub fn order(a: &[u8], b: &[u8]) -> Ordering {
    let different = a.iter().zip(b).position(|(a, b)| a != b);
    let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
    match different {
        Some(at) => rank(a[at]).cmp(&rank(b[at])),
        None => a.len().cmp(&b.len()),
    }
}

/// Returns whether a path is beneath a directory, of which an empty one is the root.
#[must_use]
pub fn is_beneath(path: &[u8], dir: &[u8]) -> bool {
    if dir.is_empty() {
        return !path.is_empty();
    }
    path.strip_prefix(dir).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Checks a path that somebody else chose: names that lead downwards, and no longer than they can be.
pub fn checked_path(path: Vec<u8>) -> Result<Vec<u8>, FrameError> {
    let is_name = |name: &[u8]| {
        !matches!(name, b"" | b"." | b"..") && name.len() <= MAX_NAME_BYTES && !name.contains(&0)
    };
    let is_path = path.len() < MAX_PATH_BYTES && path.split(|byte| *byte == b'/').all(is_name);
    is_path.then_some(path).ok_or(FrameError::Invalid("path"))
}
