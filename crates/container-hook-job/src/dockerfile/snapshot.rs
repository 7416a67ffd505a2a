//! The context of a build, copied once and hashed as it is copied.
//!
//! Jobs can change the original at any time, so each file is read only once: the hash covers exactly the copy
//! that is built. A reader thread opens all files, relative to the descriptors of their directories; the
//! calling thread copies them.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use oci_hooks_files::beneath::{PATH_ONLY, descriptor_path};
use oci_hooks_files::descent::{DIRECTORY, TreeDescent, file_status};
use oci_hooks_files::fs::{PathContext as _, PathError, READ_FLAGS};
use oci_hooks_files::quantity::format_size;
use oci_hooks_image::{Digest, HashAlgorithm, Hasher};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod,
    fchown, fstat, futimens, mkdirat, open, openat, readlinkat, symlinkat,
};

use crate::runner_files::RunnerFiles;

/// Limits of a build context.
#[derive(Clone, Copy, Debug)]
pub struct ContextLimits {
    pub bytes: u64,
    pub entries: usize,
    pub depth: usize,
}

/// Limits above the size of real container actions, and low enough not to fill a disk.
pub const LIMITS: ContextLimits = ContextLimits { bytes: 4 << 30, entries: 1_000_000, depth: 256 };

/// Number of entries that are opened before they are copied; each file takes a descriptor.
const AHEAD: usize = 16;

/// Errors of copying a build context.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{} is not a regular file: a Dockerfile must not be a link or a directory", path.display())]
    NotAFile { path: PathBuf },
    /// An entry is neither a file nor a directory nor a symbolic link.
    #[error("{} is a FIFO or a device, which no build can use: remove it", path.display())]
    Special { path: PathBuf },
    #[error("{} holds more than {}, the limit for a Dockerfile action", path.display(), format_size(*limit))]
    TooBig { path: PathBuf, limit: u64 },
    #[error("{} has more than {limit} entries, the limit for a Dockerfile action", path.display())]
    TooMany { path: PathBuf, limit: usize },
    #[error("{} is more than {limit} directories deep, the limit for a Dockerfile action", path.display())]
    TooDeep {
        /// Directory that is too deep.
        path: PathBuf,
        limit: usize,
    },
}

/// The directory that a snapshot is copied to.
pub struct SnapshotTarget<'a> {
    /// Directory for the copies: empty, and inaccessible to other users.
    pub dir: &'a Path,
    /// User and group ID of the copies; the directory itself stays owned by this process's user.
    pub owner: (u32, u32),
}

/// Copies the directory of a Dockerfile, and returns the digest of the copy.
///
/// Symbolic links are copied as links; sockets are left out.
pub fn take(
    files: &RunnerFiles,
    dockerfile: &Path,
    target: &SnapshotTarget<'_>,
    limits: ContextLimits,
) -> Result<Digest, ContextError> {
    let not_a_file = || ContextError::NotAFile { path: dockerfile.to_owned() };
    let (Some(context), Some(name)) = (dockerfile.parent(), dockerfile.file_name()) else {
        return Err(not_a_file());
    };
    let source = OwnedFd::from(files.read(context)?);
    let top = open(target.dir, DIRECTORY, Mode::empty()).with_path("open", target.dir)?;
    let mut writer = ContextWriter {
        target,
        context,
        dockerfile: name,
        has_dockerfile: false,
        bytes_left: limits.bytes,
        limits,
        hasher: Hasher::new(HashAlgorithm::Sha256),
    };
    thread::scope(|scope| {
        let (send, receive) = sync_channel(AHEAD);
        let reader =
            ContextReader { context, dockerfile: name, limits, entries_left: limits.entries, send };
        let reader = scope.spawn(move || reader.walk(source));
        let written = writer.write(top, &receive);
        // After a write error, this unblocks a reader that waits for room in the channel.
        drop(receive);
        reader.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        written
    })?;
    if !writer.has_dockerfile {
        return Err(not_a_file());
    }
    Ok(writer.hasher.finish())
}

/// An entry of the context, sent from the reader to the writer.
enum ContextEntry {
    /// Directory that contains the following entries. The top comes first, without a name.
    Directory {
        name: CString,
        stat: Stat,
    },
    /// End of the innermost open directory.
    End,
    File {
        name: CString,
        file: File,
        stat: Stat,
    },
    Link {
        name: CString,
        target: CString,
    },
}

struct ContextReader<'a> {
    context: &'a Path,
    dockerfile: &'a OsStr,
    limits: ContextLimits,
    entries_left: usize,
    send: SyncSender<ContextEntry>,
}

impl ContextReader<'_> {
    fn walk(mut self, top: OwnedFd) -> Result<(), ContextError> {
        let stat = fstat(&top).with_path("inspect", self.context)?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            let error = rustix::io::Errno::NOTDIR;
            return Err(PathError::new("list", self.context, error).into());
        }
        // Checked first, because copying the context may take a while.
        let path = self.context.join(self.dockerfile);
        let found =
            openat(&top, self.dockerfile, PATH_ONLY, Mode::empty()).with_path("open", &path)?;
        if !FileType::from_raw_mode(fstat(&found).with_path("inspect", &path)?.st_mode).is_file() {
            return Err(ContextError::NotAFile { path });
        }
        let mut path = self.context.to_owned();
        // Holds the remaining names of each directory, in reverse order.
        let names = self.list(top.as_fd(), &path)?;
        let mut descent = TreeDescent::new(top.as_fd(), names).with_path("inspect", &path)?;
        let mut is_wanted =
            self.send_entry(ContextEntry::Directory { name: CString::default(), stat });
        while is_wanted {
            let depth = descent.depth();
            let (dir, names) = descent.current_directory();
            let Some(name) = names.pop() else {
                is_wanted = self.send_entry(ContextEntry::End);
                if descent.leave().with_path("return to the parent directory of", &path)?.is_none()
                {
                    break;
                }
                path.pop();
                continue;
            };
            path.push(OsStr::from_bytes(name.to_bytes()));
            // Opening a device can have side effects.
            let found = openat(dir, &name, PATH_ONLY, Mode::empty()).with_path("open", &path)?;
            let stat = fstat(&found).with_path("inspect", &path)?;
            let entry = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    let file = open(descriptor_path(&found), READ_FLAGS, Mode::empty());
                    Some(ContextEntry::File {
                        name,
                        file: file.with_path("open", &path)?.into(),
                        stat,
                    })
                }
                FileType::Symlink => {
                    let target = readlinkat(&found, c"", Vec::new()).with_path("read", &path)?;
                    Some(ContextEntry::Link { name, target })
                }
                FileType::Socket => None,
                FileType::Directory if depth >= self.limits.depth => {
                    return Err(ContextError::TooDeep { path, limit: self.limits.depth });
                }
                FileType::Directory => {
                    let dir =
                        openat(&found, c".", DIRECTORY, Mode::empty()).with_path("open", &path)?;
                    let names = self.list(dir.as_fd(), &path)?;
                    let found = file_status(dir.as_fd()).with_path("inspect", &path)?;
                    descent.enter(dir, &found, names);
                    is_wanted = self.send_entry(ContextEntry::Directory { name, stat });
                    // `path` keeps the name: the next entries are in this directory.
                    continue;
                }
                _ => return Err(ContextError::Special { path }),
            };
            path.pop();
            if let Some(entry) = entry {
                is_wanted = self.send_entry(entry);
            }
        }
        Ok(())
    }

    /// Sends an entry to the writer; returns false if the writer has failed.
    fn send_entry(&self, entry: ContextEntry) -> bool {
        self.send.send(entry).is_ok()
    }

    /// Returns the names in a directory, sorted for a stable digest and reversed for `pop`.
    fn list(&mut self, dir: BorrowedFd<'_>, path: &Path) -> Result<Vec<CString>, ContextError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(dir).with_path("list", path)? {
            let entry = entry.with_path("list", path)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let limit = self.limits.entries;
            let too_many = || ContextError::TooMany { path: self.context.to_owned(), limit };
            self.entries_left = self.entries_left.checked_sub(1).ok_or_else(too_many)?;
            names.push(name.to_owned());
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }
}

struct ContextWriter<'a> {
    target: &'a SnapshotTarget<'a>,
    context: &'a Path,
    dockerfile: &'a OsStr,
    has_dockerfile: bool,
    bytes_left: u64,
    limits: ContextLimits,
    hasher: Hasher,
}

impl ContextWriter<'_> {
    fn write(
        &mut self,
        top: OwnedFd,
        entries: &Receiver<ContextEntry>,
    ) -> Result<(), ContextError> {
        let mut entries = entries.iter();
        // A reader that sends no top directory returns an error.
        let Some(ContextEntry::Directory { name, stat }) = entries.next() else { return Ok(()) };
        self.hash(b"d", &name, Some(&stat));
        let mut path = PathBuf::new();
        let mut descent =
            TreeDescent::new(top.as_fd(), stat).with_path("inspect", self.target.dir)?;
        for entry in entries {
            match entry {
                ContextEntry::Directory { name, stat } => {
                    self.hash(b"d", &name, Some(&stat));
                    path.push(OsStr::from_bytes(name.to_bytes()));
                    let dir = make_directory(descent.current_directory().0, &name)
                        .with_path("create the directory", &path)?;
                    let found = file_status(dir.as_fd()).with_path("inspect", &path)?;
                    descent.enter(dir, &found, stat);
                }
                ContextEntry::End => {
                    self.hasher.update(b"e");
                    // The top is the target directory, which keeps its owner for now.
                    let owner = (descent.depth() > 1).then_some(self.target.owner);
                    let (dir, stat) = descent.current_directory();
                    finish(dir, stat, owner).with_path("copy", &path)?;
                    descent.leave().with_path("return to the parent directory of", &path)?;
                    path.pop();
                }
                ContextEntry::File { name, file, stat } => {
                    self.hash(b"f", &name, Some(&stat));
                    let path = path.join(OsStr::from_bytes(name.to_bytes()));
                    self.has_dockerfile |= path == self.dockerfile;
                    self.file(descent.current_directory().0, &name, file, &stat, &path)?;
                }
                ContextEntry::Link { name, target } => {
                    self.hash(b"l", &name, None);
                    self.hasher.update(target.to_bytes_with_nul());
                    let path = path.join(OsStr::from_bytes(name.to_bytes()));
                    let (dir, _) = descent.current_directory();
                    symlinkat(&target, dir, &name).with_path("copy", &path)?;
                    let (uid, gid) = ids(self.target.owner);
                    chownat(dir, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                        .with_path("copy", &path)?;
                }
            }
        }
        Ok(())
    }

    /// Hashes an entry. Names end with a NUL and the other fields have a fixed length, so different trees
    /// have different hash inputs.
    fn hash(&mut self, kind: &[u8; 1], name: &CStr, stat: Option<&Stat>) {
        self.hasher.update(kind);
        self.hasher.update(name.to_bytes_with_nul());
        if let Some(stat) = stat {
            self.hasher.update(&(stat.st_mode & 0o7777).to_le_bytes());
        }
    }

    fn file(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        mut file: File,
        stat: &Stat,
        path: &Path,
    ) -> Result<(), ContextError> {
        let original = self.context.join(path);
        // Rejects a file by its reported size before copying it.
        self.check_room(u64::try_from(stat.st_size).unwrap_or_default())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let copy =
            openat(dir, name, flags, Mode::RUSR | Mode::WUSR).with_path("copy", &original)?;
        let mut copy = File::from(copy);
        let mut content = Hasher::new(HashAlgorithm::Sha256);
        let mut buffer = vec![0; 128 << 10];
        loop {
            let count = file.read(&mut buffer).with_path("read", &original)?;
            if count == 0 {
                break;
            }
            self.bytes_left = self.check_room(count as u64)?;
            content.update(&buffer[..count]);
            copy.write_all(&buffer[..count]).with_path("copy", &original)?;
        }
        self.hasher.update(content.finish().hex().as_bytes());
        Ok(finish(copy.as_fd(), stat, Some(self.target.owner)).with_path("copy", &original)?)
    }

    /// Returns the bytes that remain of the size limit after `bytes` more; fails if they exceed it.
    fn check_room(&self, bytes: u64) -> Result<u64, ContextError> {
        let too_big =
            || ContextError::TooBig { path: self.context.to_owned(), limit: self.limits.bytes };
        self.bytes_left.checked_sub(bytes).ok_or_else(too_big)
    }
}

fn make_directory(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    mkdirat(parent, name, Mode::RWXU)?;
    Ok(openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Sets the owner of a copy, if given, and gives it the mode and times of the original.
fn finish(copy: BorrowedFd<'_>, stat: &Stat, owner: Option<(u32, u32)>) -> io::Result<()> {
    if let Some(owner) = owner {
        let (uid, gid) = ids(owner);
        fchown(copy, uid, gid)?;
    }
    fchmod(copy, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.try_into().unwrap_or_default(),
    };
    Ok(futimens(
        copy,
        &Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
        },
    )?)
}

fn ids((uid, gid): (u32, u32)) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use oci_hooks_host::file_user::own_ids;
    use oci_hooks_host::removal::remove_tree;
    use oci_hooks_testsupport::descriptors::with_few_descriptors;
    use rustix::fs::mkfifoat;

    use super::*;

    struct ContextTree {
        dir: tempfile::TempDir,
        files: RunnerFiles,
    }

    impl ContextTree {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("context/src")).unwrap();
            fs::write(dir.path().join("context/Dockerfile"), "FROM scratch\n").unwrap();
            let files = RunnerFiles::new(&dir.path().join("context")).unwrap();
            ContextTree { dir, files }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join("context").join(name)
        }

        fn copy(&self) -> PathBuf {
            self.dir.path().join("copy")
        }

        fn take_within(&self, limits: ContextLimits) -> Result<String, ContextError> {
            let _ = fs::remove_dir_all(self.copy());
            fs::create_dir(self.copy()).unwrap();
            let target = SnapshotTarget { dir: &self.copy(), owner: own_ids() };
            take(&self.files, &self.path("Dockerfile"), &target, limits).map(|d| d.hex().to_owned())
        }

        fn take(&self) -> Result<String, ContextError> {
            self.take_within(LIMITS)
        }
    }

    #[test]
    fn snapshot_copies_all_files_except_sockets() {
        let tree = ContextTree::new();
        fs::create_dir_all(tree.path(".git/objects")).unwrap();
        fs::write(tree.path("src/run"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(tree.path("src/run"), fs::Permissions::from_mode(0o751)).unwrap();
        symlink("/etc/shadow", tree.path("src/link")).unwrap();
        let _socket = UnixListener::bind(tree.path("socket")).unwrap();
        tree.take().unwrap();
        let copy = tree.copy();
        assert_eq!(fs::read(copy.join("src/run")).unwrap(), b"#!/bin/sh\n");
        assert_eq!(
            fs::metadata(copy.join("src/run")).unwrap().permissions().mode() & 0o7777,
            0o751
        );
        assert_eq!(fs::read_link(copy.join("src/link")).unwrap(), Path::new("/etc/shadow"));
        assert!(copy.join(".git/objects").is_dir());
        assert!(!copy.join("socket").exists());
        let times = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
        for name in ["src/run", "src", "Dockerfile"] {
            assert_eq!(times(copy.join(name)), times(tree.path(name)), "{name}");
        }
    }

    #[test]
    fn every_change_of_the_context_changes_the_digest() {
        let tree = ContextTree::new();
        let mut seen = vec![tree.take().unwrap()];
        assert_eq!(tree.take().unwrap(), seen[0]);
        let mode = |mode| fs::set_permissions(tree.path("src/a"), fs::Permissions::from_mode(mode));
        let changes: [&dyn Fn(); 7] = [
            &|| fs::write(tree.path("src/a"), "1").unwrap(),
            &|| fs::write(tree.path("src/a"), "2").unwrap(),
            &|| mode(0o755).unwrap(),
            &|| fs::rename(tree.path("src/a"), tree.path("a")).unwrap(),
            &|| fs::create_dir(tree.path(".git")).unwrap(),
            &|| symlink("a", tree.path("b")).unwrap(),
            &|| fs::write(tree.path("Dockerfile"), "FROM busybox\n").unwrap(),
        ];
        for change in changes {
            change();
            let digest = tree.take().unwrap();
            assert!(!seen.contains(&digest), "after {}", seen.len());
            seen.push(digest);
        }
    }

    #[test]
    fn fifos_and_devices_are_rejected_by_name() {
        let tree = ContextTree::new();
        mkfifoat(rustix::fs::CWD, tree.path("src/fifo"), Mode::RWXU).unwrap();
        let error = tree.take().unwrap_err().to_string();
        assert!(error.starts_with(&tree.path("src/fifo").display().to_string()), "{error}");
    }

    #[test]
    fn dockerfile_must_be_a_regular_file_of_its_context() {
        let tree = ContextTree::new();
        let target = SnapshotTarget { dir: &tree.copy(), owner: own_ids() };
        fs::create_dir(tree.copy()).unwrap();
        symlink("Dockerfile", tree.path("link")).unwrap();
        for name in ["link", "src", "missing", ".."] {
            take(&tree.files, &tree.path(name), &target, LIMITS).unwrap_err();
        }
        // An endless device, which must not be read.
        let error = take(&tree.files, Path::new("/dev/zero"), &target, LIMITS).unwrap_err();
        assert!(matches!(error, ContextError::NotAFile { .. }), "{error}");
        assert_eq!(fs::read_dir(tree.copy()).unwrap().count(), 0);
    }

    #[test]
    fn exceeded_limits_are_named() {
        let tree = ContextTree::new();
        for limits in [
            ContextLimits { bytes: 12, ..LIMITS },
            ContextLimits { entries: 1, ..LIMITS },
            ContextLimits { depth: 1, ..LIMITS },
        ] {
            let error = tree.take_within(limits).unwrap_err().to_string();
            assert!(error.contains("the limit for a Dockerfile action"), "{error}");
        }
        tree.take_within(ContextLimits { bytes: 13, entries: 2, depth: 2 }).unwrap();
        // A sparse file is rejected by its size, without copying.
        File::create(tree.path("sparse")).unwrap().set_len(1 << 40).unwrap();
        let error = tree.take_within(ContextLimits { bytes: 1 << 20, ..LIMITS }).unwrap_err();
        assert!(matches!(error, ContextError::TooBig { .. }), "{error}");
    }

    #[test]
    fn endless_nesting_is_an_error() {
        let tree = ContextTree::new();
        let mut dir = open(tree.path("src"), DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..LIMITS.depth {
            dir = make_directory(dir.as_fd(), c"d").unwrap();
        }
        let error = tree.take().unwrap_err();
        assert!(matches!(error, ContextError::TooDeep { limit: 256, .. }), "{error}");
    }

    #[test]
    fn depth_within_the_limit_takes_few_descriptors() {
        let test = "dockerfile::snapshot::tests::\
                depth_within_the_limit_takes_few_descriptors";
        with_few_descriptors(test, || {
            let tree = ContextTree::new();
            let deep = "d/".repeat(250);
            fs::create_dir_all(tree.path(&deep)).unwrap();
            tree.take().unwrap();
            assert!(tree.copy().join(&deep).is_dir());
            remove_tree(tree.dir.path()).unwrap();
        });
    }
}
