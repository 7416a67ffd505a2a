//! Making the files of a layer.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ftruncate, linkat, makedev, mknodat, openat, statat, symlinkat,
};
use rustix::io::Errno;

use super::archive::{Archive, Entry, Kind, Source};
use super::attributes::{Attributes, path_of, set_time};
use super::error::{Limit, Limits, UnpackError};
use super::place::OpenPath;
use crate::sys::beneath::open_strictly;
use crate::sys::privilege::Privilege;
use crate::sys::removal::remove_all;

/// What a name starts with that hides another one in lower layers.
const WHITEOUT: &[u8] = b".wh.";
/// What the names start with that storage drivers kept for themselves, and that of a file which
/// hides all that lower layers have in its directory.
const PRIVATE: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Longest path that a process in the container could name.
const MAX_PATH_BYTES: usize = 4095;

/// Files take whole blocks of the disk.
const BLOCK_BYTES: u64 = 4096;

const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A layer that is being made.
pub struct Extractor<'a> {
    place: OpenPath,
    attributes: Attributes,
    limits: &'a Limits,
    rules: Rules,
    unpacked: Unpacked,
}

/// What was unpacked.
#[derive(Debug)]
pub struct Unpacked {
    /// About how much of the disk it takes.
    pub size_bytes: u64,
    pub entries: u64,
    /// Whether it hides all layers below.
    pub is_opaque: bool,
}

/// What is made of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    Layer,
    /// A directory with the plain files of the archive, all of one owner.
    Plain {
        owner: (u32, u32),
    },
}

impl<'a> Extractor<'a> {
    /// Starts in a new directory.
    pub fn new(
        tree: &Path,
        limits: &'a Limits,
        rules: Rules,
        privilege: Privilege,
    ) -> Result<Self, UnpackError> {
        let attributes = Attributes::new(privilege);
        let owner = attributes.default_owner(match rules {
            Rules::Layer => None,
            Rules::Plain { owner } => Some(owner),
        });
        let opaque = privilege.at_most_own().overlay_attributes();
        let place = OpenPath::new(tree, owner, opaque).map_err(|error| UnpackError::File {
            action: error.action,
            path: error.path,
            source: error.source,
        })?;
        let unpacked = Unpacked { size_bytes: BLOCK_BYTES, entries: 0, is_opaque: false };
        Ok(Extractor { place, attributes, limits, rules, unpacked })
    }

    /// Makes everything that is in the archive.
    pub fn run<R: Source>(mut self, archive: &mut Archive<R>) -> Result<Unpacked, UnpackError> {
        let mut entry = Entry::default();
        let mut path = Vec::new();
        while archive.next(&mut entry)? {
            self.unpacked.entries += 1;
            if self.unpacked.entries > self.limits.entries {
                return Err(UnpackError::Limit { limit: Limit::Entries(self.limits.entries) });
            }
            if let Rules::Plain { owner } = self.rules {
                make_plain(&mut entry, owner)?;
            }
            self.attributes.fit(&mut entry)?;
            self.normalise(&entry, &entry.path, &mut path)?;
            self.make(archive, &entry, &path)?;
        }
        self.place.leave().map_err(|error| UnpackError::File {
            action: "set the time of a directory",
            path: PathBuf::new(),
            source: error.into(),
        })?;
        Ok(self.unpacked)
    }

    /// Turns a name into the path below the layer's root: no `/` at the ends, nothing but names.
    fn normalise(&self, entry: &Entry, name: &[u8], path: &mut Vec<u8>) -> Result<(), UnpackError> {
        path.clear();
        if name.len() > MAX_PATH_BYTES {
            return Err(rejected(entry, "has a longer path than Linux can open"));
        }
        let mut depth = 0;
        for component in name.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err(rejected(entry, "has \"..\" in its path")),
                _ => {}
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(component);
            depth += 1;
        }
        if depth > self.limits.depth {
            return Err(UnpackError::Limit { limit: Limit::Depth(self.limits.depth) });
        }
        Ok(())
    }

    /// Makes what an entry says, at this path.
    fn make<R: Source>(
        &mut self,
        archive: &mut Archive<R>,
        entry: &Entry,
        path: &[u8],
    ) -> Result<(), UnpackError> {
        if path.is_empty() {
            if entry.kind != Kind::Directory {
                return Err(rejected(entry, "would replace the root directory"));
            }
            let root = self.place.root();
            root.mtime = Some(entry.mtime);
            root.gives_group = entry.mode & 0o2000 != 0;
            return self.attributes.reset(&root.fd, entry).at("set the attributes of", entry);
        }
        let (parent, name) = split(path);
        let is_whiteout = path.starts_with(WHITEOUT) || contains(path, b"/.wh.");
        if is_whiteout && self.rules == Rules::Layer {
            let components = || path.split(|byte| *byte == b'/');
            if name != OPAQUE && components().any(|component| component.starts_with(PRIVATE)) {
                return Ok(());
            }
            if parent.split(|byte| *byte == b'/').any(|part| part.starts_with(WHITEOUT)) {
                return Err(rejected(entry, "is in a directory that is named as a whiteout"));
            }
            self.enter(parent, entry)?;
            return self.whiteout(entry, name);
        }
        self.enter(parent, entry)?;
        match entry.kind {
            Kind::Directory => self.directory(entry, name),
            Kind::File => self.file(archive, entry, name),
            Kind::Hardlink => self.hardlink(entry, path, name),
            Kind::Symlink => {
                let target = entry.target.as_slice();
                self.node(entry, name, |directory| symlinkat(target, directory, name))
            }
            Kind::Character | Kind::Block if !self.attributes.can_make(entry) => Ok(()),
            Kind::Character | Kind::Block | Kind::Fifo => {
                let kind = match entry.kind {
                    Kind::Character => FileType::CharacterDevice,
                    Kind::Block => FileType::BlockDevice,
                    _ => FileType::Fifo,
                };
                let mode = Mode::from_raw_mode(entry.mode);
                let device = makedev(entry.device.0, entry.device.1);
                self.node(entry, name, |directory| mknodat(directory, name, kind, mode, device))
            }
        }
    }

    fn enter(&mut self, parent: &[u8], entry: &Entry) -> Result<(), UnpackError> {
        self.place.enter(parent).at("make the directory of", entry)
    }

    fn whiteout(&mut self, entry: &Entry, name: &[u8]) -> Result<(), UnpackError> {
        if name == OPAQUE {
            let is_root = self.place.is_at_root();
            self.unpacked.is_opaque |= is_root;
            return self.place.set_here_opaque().at("hide what is below", entry);
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(rejected(entry, "hides no file"));
        }
        let directory = self.place.here().fd.as_fd();
        let result = match mknodat(directory, hidden, FileType::CharacterDevice, Mode::empty(), 0) {
            // Whatever this layer has there hides what is below, except that directories merge.
            Err(Errno::EXIST) => match open_strictly(directory, hidden, OPEN_DIR, Mode::empty()) {
                Ok(opened) => self.place.set_opaque(&opened),
                Err(Errno::NOTDIR | Errno::LOOP) => Ok(()),
                Err(error) => Err(error),
            },
            result => result,
        };
        result.at("make the whiteout", entry)
    }

    fn directory(&mut self, entry: &Entry, name: &[u8]) -> Result<(), UnpackError> {
        let inherits = self.place.here().gives_group;
        let (mut level, is_new) =
            self.place.make_directory(name).at("make the directory", entry)?;
        // One that lower layers have gets all of this one's attributes too, so none may be left
        // to chance.
        let result = if is_new && !self.attributes.changes_mode(0o755) && entry.mode == 0o755 {
            self.attributes.set(&level.fd, entry, inherits)
        } else {
            self.attributes.reset(&level.fd, entry)
        };
        result.at("set the attributes of", entry)?;
        level.mtime = Some(entry.mtime);
        level.gives_group = entry.mode & 0o2000 != 0;
        self.unpacked.size_bytes += BLOCK_BYTES;
        self.place.push(name, level);
        Ok(())
    }

    fn file<R: Source>(
        &mut self,
        archive: &mut Archive<R>,
        entry: &Entry,
        name: &[u8],
    ) -> Result<(), UnpackError> {
        if entry.size > self.limits.bytes {
            return Err(UnpackError::Limit { limit: Limit::Bytes(self.limits.bytes) });
        }
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        let file = self.replacing(name, |directory| openat(directory, name, NEW_FILE, mode));
        let file = std::fs::File::from(file.at("make", entry)?);
        let mut position = 0;
        let write = |piece: &[u8], at: u64| {
            file.write_all_at(piece, at).map_err(|source| UnpackError::File {
                action: "write",
                path: path_of(&entry.path),
                source,
            })
        };
        self.unpacked.size_bytes += archive.left().next_multiple_of(BLOCK_BYTES);
        match &entry.segments {
            None => archive.data(u64::MAX, |piece| {
                write(piece, position)?;
                position += piece.len() as u64;
                Ok(())
            })?,
            Some(segments) => {
                for segment in segments {
                    position = segment.offset;
                    archive.data(segment.length, |piece| {
                        write(piece, position)?;
                        position += piece.len() as u64;
                        Ok(())
                    })?;
                }
                ftruncate(&file, entry.size).at("write", entry)?;
            }
        }
        let inherits = self.place.here().gives_group;
        self.attributes.set(&file, entry, inherits).at("set the attributes of", entry)?;
        set_time(&file, entry.mtime).at("set the time of", entry)
    }

    fn hardlink(&mut self, entry: &Entry, path: &[u8], name: &[u8]) -> Result<(), UnpackError> {
        let mut target = Vec::new();
        self.normalise(entry, &entry.target, &mut target)?;
        if target.is_empty() {
            return Err(rejected(entry, "is a link to the root directory"));
        }
        if target == path {
            return Ok(());
        }
        let (parent, target) = split(&target);
        let parent = self.place.open(parent).at("open the target of the link", entry)?;
        // Before what stands here is removed.
        statat(&parent, target, AtFlags::SYMLINK_NOFOLLOW).at("find the target of", entry)?;
        self.replacing(name, |directory| linkat(&parent, target, directory, name, AtFlags::empty()))
            .at("make the link", entry)
    }

    fn node(
        &mut self,
        entry: &Entry,
        name: &[u8],
        make: impl Fn(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(), UnpackError> {
        self.replacing(name, make).at("make", entry)?;
        let here = self.place.here();
        let has_mode = entry.kind != Kind::Symlink;
        self.attributes
            .set_at(here.fd.as_fd(), name, entry, here.gives_group, has_mode)
            .at("set the attributes of", entry)
    }

    /// Makes something in the current directory, in the place of what an earlier entry made there.
    fn replacing<T>(
        &mut self,
        name: &[u8],
        make: impl Fn(&OwnedFd) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let directory = &self.place.here().fd;
        match make(directory) {
            Err(Errno::EXIST) => {
                remove_all(directory.as_fd(), name)?;
                Ok(make(directory)?)
            }
            result => Ok(result?),
        }
    }
}

/// Takes from an entry what only layers may have.
fn make_plain(entry: &mut Entry, (uid, gid): (u32, u32)) -> Result<(), UnpackError> {
    if matches!(entry.kind, Kind::Character | Kind::Block | Kind::Fifo) {
        return Err(rejected(entry, "is neither a file nor a directory nor a link"));
    }
    (entry.uid, entry.gid) = (uid, gid);
    entry.mode &= 0o777;
    entry.xattrs.clear();
    Ok(())
}

const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Splits a path into those of its directory, and its name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn contains(path: &[u8], part: &[u8]) -> bool {
    path.windows(part.len()).any(|window| window == part)
}

fn rejected(entry: &Entry, reason: &'static str) -> UnpackError {
    UnpackError::Entry { path: path_of(&entry.path), reason }
}

/// Adds the name of the entry to an error.
trait EntryContext<T> {
    fn at(self, action: &'static str, entry: &Entry) -> Result<T, UnpackError>;
}

impl<T, E: Into<io::Error>> EntryContext<T> for Result<T, E> {
    fn at(self, action: &'static str, entry: &Entry) -> Result<T, UnpackError> {
        self.map_err(|source| UnpackError::File {
            action,
            path: path_of(&entry.path),
            source: source.into(),
        })
    }
}
