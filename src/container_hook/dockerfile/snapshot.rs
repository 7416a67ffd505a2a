//! The context of a build, copied once and hashed as it is copied.
//!
//! Jobs can change the original at any time, so nothing of it is looked at twice: what has the hash is
//! what is built from. A thread with the access of whoever asks opens everything, from descriptor to
//! descriptor; this one copies what it gets.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod,
    fchown, fstat, futimens, mkdirat, open, openat, readlinkat, symlinkat,
};

use crate::container_hook::runner_files::RunnerFiles;
use crate::image::{Algorithm, Digest, Hasher};
use crate::sys::descent::{Descent, look};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::host_file::reopen;
use crate::sys::quantity::human;

/// The most that a context may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: u64,
    pub entries: usize,
    /// Of directories in each other.
    pub depth: usize,
}

/// More than a context for a container action has, and less than would fill a disk.
pub const LIMITS: Limits = Limits { bytes: 4 << 30, entries: 1_000_000, depth: 256 };

/// Entries that are opened ahead of those that are copied; each takes a descriptor.
const AHEAD: usize = 16;

/// The directory of a Dockerfile cannot be built from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// Something cannot be read, perhaps by this user, or cannot be copied.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The Dockerfile is not one.
    #[error("{} is not a regular file: a Dockerfile is one, not a link to one", path.display())]
    NotAFile { path: PathBuf },
    /// Something is neither a file nor a directory nor a symbolic link.
    #[error("{} is a FIFO or a device, which no build can use: remove it", path.display())]
    Special { path: PathBuf },
    /// The directory holds too much.
    #[error("{} holds more than {}, the limit for a Dockerfile action", path.display(), human(*limit))]
    TooBig { path: PathBuf, limit: u64 },
    /// There are too many files.
    #[error("{} has more than {limit} entries, the limit for a Dockerfile action", path.display())]
    TooMany {
        path: PathBuf,
        /// How many there may be.
        limit: usize,
    },
    /// Directories are nested too deeply.
    #[error("{} is more than {limit} directories deep, the limit for a Dockerfile action", path.display())]
    TooDeep {
        /// The directory that is too deep.
        path: PathBuf,
        /// How deep there may be some.
        limit: usize,
    },
}

/// The directory that a snapshot is copied to.
pub struct Target<'a> {
    /// A directory that nobody else can reach, and that is empty.
    pub dir: &'a Path,
    /// Whom everything in it is to belong to; the directory itself stays this process's.
    pub owner: (u32, u32),
}

/// Copies the directory of a Dockerfile, as far as the runner may read it, and returns the digest of
/// what was copied.
///
/// Files, directories and symbolic links are copied, as links; sockets are left out.
pub fn take(
    files: &RunnerFiles,
    dockerfile: &Path,
    target: &Target<'_>,
    limits: Limits,
) -> Result<Digest, ContextError> {
    let not_a_file = || ContextError::NotAFile { path: dockerfile.to_owned() };
    let (Some(context), Some(name)) = (dockerfile.parent(), dockerfile.file_name()) else {
        return Err(not_a_file());
    };
    let source = OwnedFd::from(files.read(context)?);
    let top = open(target.dir, DIRECTORY, Mode::empty()).at("open", target.dir)?;
    let mut writer = Writer {
        target,
        context,
        dockerfile: name,
        has_dockerfile: false,
        bytes_left: limits.bytes,
        limits,
        hasher: Hasher::new(Algorithm::Sha256),
    };
    thread::scope(|scope| {
        let (send, receive) = sync_channel(AHEAD);
        let reader =
            Reader { context, dockerfile: name, limits, entries_left: limits.entries, send };
        let reader = scope.spawn(move || reader.walk(source));
        let written = writer.write(top, &receive);
        // A reader that waits for room has to hear that nobody takes anything any more.
        drop(receive);
        reader.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        written
    })?;
    if !writer.has_dockerfile {
        return Err(not_a_file());
    }
    Ok(writer.hasher.finish())
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Looks, and has no effect on what it finds: to open a device may have one.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A part of the context, on its way from one thread to the other.
enum Entry {
    /// The top comes first, without a name; what follows is in it.
    Directory {
        name: CString,
        stat: Stat,
    },
    /// The last directory is complete.
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

struct Reader<'a> {
    context: &'a Path,
    dockerfile: &'a OsStr,
    limits: Limits,
    entries_left: usize,
    send: SyncSender<Entry>,
}

impl Reader<'_> {
    fn walk(mut self, top: OwnedFd) -> Result<(), ContextError> {
        let stat = fstat(&top).at("look at", self.context)?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            let error = rustix::io::Errno::NOTDIR;
            return Err(PathError::new("list", self.context, error).into());
        }
        // Looked at before all else is copied, which may take a while.
        let path = self.context.join(self.dockerfile);
        let found = openat(&top, self.dockerfile, LOOK, Mode::empty()).at("open", &path)?;
        if !FileType::from_raw_mode(fstat(&found).at("look at", &path)?.st_mode).is_file() {
            return Err(ContextError::NotAFile { path });
        }
        let mut path = self.context.to_owned();
        // With the names that are still to come, the last one first.
        let names = self.list(top.as_fd(), &path)?;
        let mut descent = Descent::new(top.as_fd(), names).at("look at", &path)?;
        let mut is_wanted = self.give(Entry::Directory { name: CString::default(), stat });
        while is_wanted {
            let depth = descent.depth();
            let (dir, names) = descent.here();
            let Some(name) = names.pop() else {
                is_wanted = self.give(Entry::End);
                if descent.leave().at("find the way back from", &path)?.is_none() {
                    break;
                }
                path.pop();
                continue;
            };
            path.push(OsStr::from_bytes(name.to_bytes()));
            let found = openat(dir, &name, LOOK, Mode::empty()).at("open", &path)?;
            let stat = fstat(&found).at("look at", &path)?;
            let entry = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    Some(Entry::File { name, file: reopen(found.as_fd()).at("open", &path)?, stat })
                }
                FileType::Symlink => {
                    let target = readlinkat(&found, c"", Vec::new()).at("read", &path)?;
                    Some(Entry::Link { name, target })
                }
                FileType::Socket => None,
                FileType::Directory if depth >= self.limits.depth => {
                    return Err(ContextError::TooDeep { path, limit: self.limits.depth });
                }
                FileType::Directory => {
                    let dir = openat(&found, c".", DIRECTORY, Mode::empty()).at("open", &path)?;
                    let names = self.list(dir.as_fd(), &path)?;
                    let found = look(dir.as_fd()).at("look at", &path)?;
                    descent.enter(dir, &found, names);
                    is_wanted = self.give(Entry::Directory { name, stat });
                    // The path is of this one now.
                    continue;
                }
                _ => return Err(ContextError::Special { path }),
            };
            path.pop();
            if let Some(entry) = entry {
                is_wanted = self.give(entry);
            }
        }
        Ok(())
    }

    /// Passes an entry on; false if nobody wants it, as copying failed.
    fn give(&self, entry: Entry) -> bool {
        self.send.send(entry).is_ok()
    }

    /// Returns the names in a directory, sorted: the same content has the same digest.
    fn list(&mut self, dir: BorrowedFd<'_>, path: &Path) -> Result<Vec<CString>, ContextError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(dir).at("list", path)? {
            let entry = entry.at("list", path)?;
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

struct Writer<'a> {
    target: &'a Target<'a>,
    context: &'a Path,
    dockerfile: &'a OsStr,
    has_dockerfile: bool,
    bytes_left: u64,
    limits: Limits,
    hasher: Hasher,
}

impl Writer<'_> {
    fn write(&mut self, top: OwnedFd, entries: &Receiver<Entry>) -> Result<(), ContextError> {
        let mut entries = entries.iter();
        // A reader that finds no top says why.
        let Some(Entry::Directory { name, stat }) = entries.next() else { return Ok(()) };
        self.hash(b"d", &name, Some(&stat));
        let mut path = PathBuf::new();
        let mut descent = Descent::new(top.as_fd(), stat).at("look at", self.target.dir)?;
        for entry in entries {
            match entry {
                Entry::Directory { name, stat } => {
                    self.hash(b"d", &name, Some(&stat));
                    path.push(OsStr::from_bytes(name.to_bytes()));
                    let dir =
                        make_directory(descent.here().0, &name).at("make the directory", &path)?;
                    let found = look(dir.as_fd()).at("look at", &path)?;
                    descent.enter(dir, &found, stat);
                }
                Entry::End => {
                    self.hasher.update(b"e");
                    // The top is the directory that was given, which becomes no one else's yet.
                    let owner = (descent.depth() > 1).then_some(self.target.owner);
                    let (dir, stat) = descent.here();
                    finish(dir, stat, owner).at("copy", &path)?;
                    descent.leave().at("find the way back from", &path)?;
                    path.pop();
                }
                Entry::File { name, file, stat } => {
                    self.hash(b"f", &name, Some(&stat));
                    let path = path.join(OsStr::from_bytes(name.to_bytes()));
                    self.has_dockerfile |= path == self.dockerfile;
                    self.file(descent.here().0, &name, file, &stat, &path)?;
                }
                Entry::Link { name, target } => {
                    self.hash(b"l", &name, None);
                    self.hasher.update(target.to_bytes_with_nul());
                    let path = path.join(OsStr::from_bytes(name.to_bytes()));
                    let (dir, _) = descent.here();
                    symlinkat(&target, dir, &name).at("copy", &path)?;
                    let (uid, gid) = ids(self.target.owner);
                    chownat(dir, &name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).at("copy", &path)?;
                }
            }
        }
        Ok(())
    }

    /// Names end where they end, and what follows them has a fixed length: no other tree has the same
    /// text.
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
        // Before anything of it is copied, as far as it says so.
        self.room_after(u64::try_from(stat.st_size).unwrap_or_default())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let copy = openat(dir, name, flags, Mode::RUSR | Mode::WUSR).at("copy", &original)?;
        let mut copy = File::from(copy);
        let mut content = Hasher::new(Algorithm::Sha256);
        let mut buffer = vec![0; 128 << 10];
        loop {
            let count = file.read(&mut buffer).at("read", &original)?;
            if count == 0 {
                break;
            }
            let too_big =
                || ContextError::TooBig { path: self.context.to_owned(), limit: self.limits.bytes };
            self.bytes_left = self.bytes_left.checked_sub(count as u64).ok_or_else(too_big)?;
            content.update(&buffer[..count]);
            copy.write_all(&buffer[..count]).at("copy", &original)?;
        }
        self.hasher.update(content.finish().hex().as_bytes());
        Ok(finish(copy.as_fd(), stat, Some(self.target.owner)).at("copy", &original)?)
    }

    /// Returns what would be left of the limit.
    fn room_after(&self, bytes: u64) -> Result<u64, ContextError> {
        let too_big =
            || ContextError::TooBig { path: self.context.to_owned(), limit: self.limits.bytes };
        self.bytes_left.checked_sub(bytes).ok_or_else(too_big)
    }
}

fn make_directory(parent: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    mkdirat(parent, name, Mode::RWXU)?;
    Ok(openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Gives a copy its owner, and the mode and the times of the original.
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

    use rustix::fs::mkfifoat;

    use super::*;
    use crate::sys::caller::own_ids;
    use crate::sys::removal::remove_tree;
    use crate::sys::tests::with_few_descriptors;

    struct Tree {
        dir: tempfile::TempDir,
        files: RunnerFiles,
    }

    impl Tree {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("context/src")).unwrap();
            fs::write(dir.path().join("context/Dockerfile"), "FROM scratch\n").unwrap();
            let files = RunnerFiles::new(&dir.path().join("context")).unwrap();
            Tree { dir, files }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join("context").join(name)
        }

        fn copy(&self) -> PathBuf {
            self.dir.path().join("copy")
        }

        fn take_within(&self, limits: Limits) -> Result<String, ContextError> {
            // Directories that may not be written to can be removed by root alone.
            let _ = fs::remove_dir_all(self.copy());
            fs::create_dir(self.copy()).unwrap();
            let target = Target { dir: &self.copy(), owner: own_ids() };
            take(&self.files, &self.path("Dockerfile"), &target, limits).map(|d| d.hex().to_owned())
        }

        fn take(&self) -> Result<String, ContextError> {
            self.take_within(LIMITS)
        }
    }

    #[test]
    fn what_is_copied_is_what_is_there_and_sockets_are_left_out() {
        let tree = Tree::new();
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
    fn each_difference_makes_another_digest() {
        let tree = Tree::new();
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
    fn fifos_and_devices_are_refused_by_name() {
        let tree = Tree::new();
        mkfifoat(rustix::fs::CWD, tree.path("src/fifo"), Mode::RWXU).unwrap();
        let error = tree.take().unwrap_err().to_string();
        assert!(error.starts_with(&tree.path("src/fifo").display().to_string()), "{error}");
    }

    #[test]
    fn a_dockerfile_is_a_regular_file_of_its_directory() {
        let tree = Tree::new();
        let target = Target { dir: &tree.copy(), owner: own_ids() };
        fs::create_dir(tree.copy()).unwrap();
        symlink("Dockerfile", tree.path("link")).unwrap();
        for name in ["link", "src", "missing", ".."] {
            take(&tree.files, &tree.path(name), &target, LIMITS).unwrap_err();
        }
        // Endless, and it may be that nothing of it is read.
        let error = take(&tree.files, Path::new("/dev/zero"), &target, LIMITS).unwrap_err();
        assert!(matches!(error, ContextError::NotAFile { .. }), "{error}");
        assert_eq!(fs::read_dir(tree.copy()).unwrap().count(), 0);
    }

    #[test]
    fn limits_are_named() {
        let tree = Tree::new();
        for limits in [
            Limits { bytes: 12, ..LIMITS },
            Limits { entries: 1, ..LIMITS },
            Limits { depth: 1, ..LIMITS },
        ] {
            let error = tree.take_within(limits).unwrap_err().to_string();
            assert!(error.contains("the limit for a Dockerfile action"), "{error}");
        }
        tree.take_within(Limits { bytes: 13, entries: 2, depth: 2 }).unwrap();
        // A file that claims to be large takes neither time nor place.
        File::create(tree.path("sparse")).unwrap().set_len(1 << 40).unwrap();
        let error = tree.take_within(Limits { bytes: 1 << 20, ..LIMITS }).unwrap_err();
        assert!(matches!(error, ContextError::TooBig { .. }), "{error}");
    }

    #[test]
    fn directories_nested_without_end_are_an_error() {
        let tree = Tree::new();
        let mut dir = open(tree.path("src"), DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..LIMITS.depth {
            dir = make_directory(dir.as_fd(), c"d").unwrap();
        }
        let error = tree.take().unwrap_err();
        assert!(matches!(error, ContextError::TooDeep { limit: 256, .. }), "{error}");
    }

    #[test]
    fn depth_within_the_limit_takes_few_descriptors() {
        let test = "container_hook::build::snapshot::tests::\
                depth_within_the_limit_takes_few_descriptors";
        with_few_descriptors(test, || {
            let tree = Tree::new();
            let deep = "d/".repeat(250);
            fs::create_dir_all(tree.path(&deep)).unwrap();
            tree.take().unwrap();
            assert!(tree.copy().join(&deep).is_dir());
            remove_tree(tree.dir.path()).unwrap();
        });
    }
}
