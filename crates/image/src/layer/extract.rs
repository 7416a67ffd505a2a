//! Creates the files of a layer from the entries of its archive.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::beneath::open_strictly;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::removal::remove_all;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ftruncate, linkat, makedev, mknodat, openat, statat, symlinkat,
};
use rustix::io::Errno;

use super::archive::{ArchiveInput, TarArchive, TarEntry, TarEntryKind};
use super::attributes::{FileAttributes, path_of, set_time};
use super::error::{LayerLimit, LayerLimits, UnpackError};
use super::place::OpenPath;

/// Prefix of whiteouts. The rest of the name is that of the hidden file in lower layers.
const WHITEOUT: &[u8] = b".wh.";
/// Prefix of names that are private to storage drivers.
const PRIVATE: &[u8] = b".wh..wh.";
/// Name of the file that makes its directory opaque.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Longest path that a process in the container could name.
const MAX_PATH_BYTES: usize = 4095;

/// Block size of the disk, to which sizes of files are rounded up.
const BLOCK_BYTES: u64 = 4096;

const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Extraction of a layer.
pub struct Extractor<'a> {
    place: OpenPath,
    attributes: FileAttributes,
    limits: &'a LayerLimits,
    rules: ExtractRules,
    unpacked: UnpackSummary,
}

/// Result of unpacking.
#[derive(Debug)]
pub struct UnpackSummary {
    pub size_bytes: u64,
    pub entries: u64,
    pub is_opaque: bool,
    /// Highest user or group that a file belongs to.
    pub highest_owner: u32,
}

/// Rules for the entries of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtractRules {
    Layer,
    /// Directory with the plain files of the archive, all of one owner.
    Plain {
        owner: (u32, u32),
    },
}

impl<'a> Extractor<'a> {
    /// Starts an extraction into a new directory.
    pub fn new(
        tree: &Path,
        limits: &'a LayerLimits,
        rules: ExtractRules,
        privilege: Privilege,
    ) -> Result<Self, UnpackError> {
        let attributes = FileAttributes::new(privilege);
        let owner = attributes.default_owner(match rules {
            ExtractRules::Layer => None,
            ExtractRules::Plain { owner } => Some(owner),
        });
        let opaque = privilege.limit_to_own().overlay_attributes();
        let place = OpenPath::new(tree, owner, opaque).map_err(|error| UnpackError::File {
            action: error.action,
            path: error.path,
            source: error.source,
        })?;
        let unpacked = UnpackSummary {
            size_bytes: BLOCK_BYTES,
            entries: 0,
            is_opaque: false,
            highest_owner: 0,
        };
        Ok(Extractor { place, attributes, limits, rules, unpacked })
    }

    /// Extracts all entries of the archive.
    pub fn run<R: ArchiveInput>(
        mut self,
        archive: &mut TarArchive<R>,
    ) -> Result<UnpackSummary, UnpackError> {
        let mut entry = TarEntry::default();
        let mut path = Vec::new();
        while archive.next(&mut entry)? {
            self.unpacked.entries += 1;
            if self.unpacked.entries > self.limits.entries {
                return Err(UnpackError::Limit { limit: LayerLimit::Entries(self.limits.entries) });
            }
            if let ExtractRules::Plain { owner } = self.rules {
                make_plain(&mut entry, owner)?;
            }
            self.attributes.adapt_owner(&mut entry)?;
            self.normalise(&entry, &entry.path, &mut path)?;
            self.make(archive, &entry, &path)?;
        }
        self.place.leave().map_err(|error| UnpackError::File {
            action: "set the times of directories in",
            path: PathBuf::from("/"),
            source: error.into(),
        })?;
        Ok(self.unpacked)
    }

    /// Normalizes a name to a path below the layer's root. Rejects `..`.
    fn normalise(
        &self,
        entry: &TarEntry,
        name: &[u8],
        path: &mut Vec<u8>,
    ) -> Result<(), UnpackError> {
        path.clear();
        if name.len() > MAX_PATH_BYTES {
            return Err(rejection_error(entry, "has a longer path than Linux can open"));
        }
        let mut depth = 0;
        for component in name.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => continue,
                b".." => return Err(rejection_error(entry, "has \"..\" in its path")),
                _ => {}
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(component);
            depth += 1;
        }
        if depth > self.limits.depth {
            return Err(UnpackError::Limit { limit: LayerLimit::Depth(self.limits.depth) });
        }
        Ok(())
    }

    /// Extracts an entry to a path below the layer's root.
    fn make<R: ArchiveInput>(
        &mut self,
        archive: &mut TarArchive<R>,
        entry: &TarEntry,
        path: &[u8],
    ) -> Result<(), UnpackError> {
        let is_whiteout = path.starts_with(WHITEOUT) || contains_bytes(path, b"/.wh.");
        // A hard link has the owner of its target, whatever its entry says.
        if !is_whiteout && entry.kind != TarEntryKind::Hardlink {
            let highest = &mut self.unpacked.highest_owner;
            *highest = (*highest).max(entry.uid).max(entry.gid);
        }
        if path.is_empty() {
            if entry.kind != TarEntryKind::Directory {
                return Err(rejection_error(entry, "would replace the root directory"));
            }
            let root = self.place.root();
            root.mtime = Some(entry.mtime);
            root.has_setgid = entry.mode & 0o2000 != 0;
            return self
                .attributes
                .reset(&root.fd, entry)
                .with_entry("set the attributes of", entry);
        }
        let (parent, name) = split(path);
        if is_whiteout && self.rules == ExtractRules::Layer {
            let components = || path.split(|byte| *byte == b'/');
            if name != OPAQUE && components().any(|component| component.starts_with(PRIVATE)) {
                return Ok(());
            }
            if parent.split(|byte| *byte == b'/').any(|part| part.starts_with(WHITEOUT)) {
                return Err(rejection_error(
                    entry,
                    "is in a directory that has the name of a whiteout",
                ));
            }
            self.enter(parent, entry)?;
            return self.whiteout(entry, name);
        }
        self.enter(parent, entry)?;
        match entry.kind {
            TarEntryKind::Directory => self.directory(entry, name),
            TarEntryKind::File => self.file(archive, entry, name),
            TarEntryKind::Hardlink => self.hardlink(entry, path, name),
            TarEntryKind::Symlink => {
                let target = entry.target.as_slice();
                self.node(entry, name, |directory| symlinkat(target, directory, name))
            }
            TarEntryKind::Character | TarEntryKind::Block if !self.attributes.can_make(entry) => {
                Ok(())
            }
            TarEntryKind::Character | TarEntryKind::Block | TarEntryKind::Fifo => {
                let kind = match entry.kind {
                    TarEntryKind::Character => FileType::CharacterDevice,
                    TarEntryKind::Block => FileType::BlockDevice,
                    _ => FileType::Fifo,
                };
                let mode = Mode::from_raw_mode(entry.mode);
                let device = makedev(entry.device.0, entry.device.1);
                self.node(entry, name, |directory| mknodat(directory, name, kind, mode, device))
            }
        }
    }

    fn enter(&mut self, parent: &[u8], entry: &TarEntry) -> Result<(), UnpackError> {
        self.place.enter(parent).with_entry("create the directory of", entry)
    }

    fn whiteout(&mut self, entry: &TarEntry, name: &[u8]) -> Result<(), UnpackError> {
        if name == OPAQUE {
            let is_root = self.place.is_at_root();
            self.unpacked.is_opaque |= is_root;
            return self.place.set_here_opaque().with_entry("apply the opaque whiteout", entry);
        }
        let hidden = &name[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(rejection_error(entry, "is a whiteout without the name of a file"));
        }
        let directory = self.place.current_level().fd.as_fd();
        let result = match mknodat(directory, hidden, FileType::CharacterDevice, Mode::empty(), 0) {
            // An entry of this layer hides lower ones anyway, except directories, which merge.
            Err(Errno::EXIST) => match open_strictly(directory, hidden, OPEN_DIR, Mode::empty()) {
                Ok(opened) => self.place.set_opaque(&opened),
                Err(Errno::NOTDIR | Errno::LOOP) => Ok(()),
                Err(error) => Err(error),
            },
            result => result,
        };
        result.with_entry("apply the whiteout", entry)
    }

    fn directory(&mut self, entry: &TarEntry, name: &[u8]) -> Result<(), UnpackError> {
        let inherits = self.place.current_level().has_setgid;
        let (mut level, is_new) =
            self.place.make_directory(name).with_entry("create the directory", entry)?;
        // The attributes override those of lower layers' directories too, so all of them must be
        // set.
        let result = if is_new && !self.attributes.changes_mode(0o755) && entry.mode == 0o755 {
            self.attributes.set(&level.fd, entry, inherits)
        } else {
            self.attributes.reset(&level.fd, entry)
        };
        result.with_entry("set the attributes of", entry)?;
        level.mtime = Some(entry.mtime);
        level.has_setgid = entry.mode & 0o2000 != 0;
        self.unpacked.size_bytes += BLOCK_BYTES;
        self.place.push(name, level);
        Ok(())
    }

    fn file<R: ArchiveInput>(
        &mut self,
        archive: &mut TarArchive<R>,
        entry: &TarEntry,
        name: &[u8],
    ) -> Result<(), UnpackError> {
        if entry.size > self.limits.bytes {
            return Err(UnpackError::Limit { limit: LayerLimit::Bytes(self.limits.bytes) });
        }
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        let file = self.create_replacing(name, |directory| openat(directory, name, NEW_FILE, mode));
        let file = std::fs::File::from(file.with_entry("create", entry)?);
        let mut position = 0;
        let write = |piece: &[u8], at: u64| {
            file.write_all_at(piece, at).map_err(|source| UnpackError::File {
                action: "write",
                path: path_of(&entry.path),
                source,
            })
        };
        self.unpacked.size_bytes += archive.unread_bytes().next_multiple_of(BLOCK_BYTES);
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
                ftruncate(&file, entry.size).with_entry("write", entry)?;
            }
        }
        let inherits = self.place.current_level().has_setgid;
        self.attributes.set(&file, entry, inherits).with_entry("set the attributes of", entry)?;
        set_time(&file, entry.mtime).with_entry("set the time of", entry)
    }

    fn hardlink(&mut self, entry: &TarEntry, path: &[u8], name: &[u8]) -> Result<(), UnpackError> {
        let mut target = Vec::new();
        self.normalise(entry, &entry.target, &mut target)?;
        if target.is_empty() {
            return Err(rejection_error(entry, "is a hard link to the root directory"));
        }
        if target == path {
            return Ok(());
        }
        let (parent, target) = split(&target);
        let parent =
            self.place.open(parent).with_entry("find the target of the hard link", entry)?;
        // Checked before an existing file at the link's path is removed.
        statat(&parent, target, AtFlags::SYMLINK_NOFOLLOW)
            .with_entry("find the target of the hard link", entry)?;
        self.create_replacing(name, |directory| {
            linkat(&parent, target, directory, name, AtFlags::empty())
        })
        .with_entry("create the hard link", entry)
    }

    fn node(
        &mut self,
        entry: &TarEntry,
        name: &[u8],
        make: impl Fn(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<(), UnpackError> {
        self.create_replacing(name, make).with_entry("create", entry)?;
        let here = self.place.current_level();
        let has_mode = entry.kind != TarEntryKind::Symlink;
        self.attributes
            .set_at(here.fd.as_fd(), name, entry, here.has_setgid, has_mode)
            .with_entry("set the attributes of", entry)
    }

    /// Creates a file in the current directory, in place of one that an earlier entry created.
    fn create_replacing<T>(
        &mut self,
        name: &[u8],
        make: impl Fn(&OwnedFd) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let directory = &self.place.current_level().fd;
        match make(directory) {
            Err(Errno::EXIST) => {
                remove_all(directory.as_fd(), name)?;
                Ok(make(directory)?)
            }
            result => Ok(result?),
        }
    }
}

/// Removes attributes that only layers may have.
fn make_plain(entry: &mut TarEntry, (uid, gid): (u32, u32)) -> Result<(), UnpackError> {
    if matches!(entry.kind, TarEntryKind::Character | TarEntryKind::Block | TarEntryKind::Fifo) {
        return Err(rejection_error(entry, "is neither a file nor a directory nor a link"));
    }
    (entry.uid, entry.gid) = (uid, gid);
    entry.mode &= 0o777;
    entry.xattrs.clear();
    Ok(())
}

const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Splits a path into directory and name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn contains_bytes(path: &[u8], part: &[u8]) -> bool {
    path.windows(part.len()).any(|window| window == part)
}

fn rejection_error(entry: &TarEntry, reason: &'static str) -> UnpackError {
    UnpackError::Entry { path: path_of(&entry.path), reason }
}

/// Adds the name of the entry to an error.
trait EntryContext<T> {
    fn with_entry(self, action: &'static str, entry: &TarEntry) -> Result<T, UnpackError>;
}

impl<T, E: Into<io::Error>> EntryContext<T> for Result<T, E> {
    fn with_entry(self, action: &'static str, entry: &TarEntry) -> Result<T, UnpackError> {
        self.map_err(|source| UnpackError::File {
            action,
            path: path_of(&entry.path),
            source: source.into(),
        })
    }
}
