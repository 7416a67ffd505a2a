//! Files of this system, or of a system that is mounted below a directory.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, retry_on_intr};

use super::read::{READ_FLAGS, read_opened};
use super::{PathContext as _, PathError, ReadError, read_if_there};

/// The root directory of a system: `/`, or the mount point of an image. Symbolic links of an image do not
/// lead out of it.
#[derive(Clone, Debug)]
pub struct SystemRoot {
    /// Mount point; `None` for this system.
    mounted: Option<PathBuf>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: OsString,
    /// Not set for symbolic links, even to a directory.
    pub is_dir: bool,
    /// Set only for regular files.
    pub is_file: bool,
}

impl SystemRoot {
    /// Returns the root of this system.
    pub fn host() -> Self {
        SystemRoot { mounted: None }
    }

    /// Returns the root of a system that is mounted at this path.
    pub fn mounted_at(path: &Path) -> Self {
        SystemRoot { mounted: (path != Path::new("/")).then(|| path.to_owned()) }
    }

    /// Returns whether this is the root of this system.
    pub fn is_host(&self) -> bool {
        self.mounted.is_none()
    }

    /// Converts a path of the mounted system to one of this system.
    pub fn join(&self, path: &Path) -> PathBuf {
        match &self.mounted {
            None => path.to_owned(),
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }

    /// Reads a file of at most `limit_bytes`; `None` if it does not exist.
    pub fn read(&self, path: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, ReadError> {
        let Some(root) = &self.mounted else { return read_if_there(path, limit_bytes) };
        let seen = self.join(path);
        match open_in(root, path, READ_FLAGS) {
            Ok(file) => Ok(Some(read_opened(&file, &seen, limit_bytes)?.0)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(PathError::new("open", &seen, errno).into()),
        }
    }

    /// Lists a directory in byte order; `None` if it does not exist.
    pub fn list(&self, dir: &Path) -> Result<Option<Vec<DirEntry>>, PathError> {
        let seen = self.join(dir);
        let listed = match &self.mounted {
            None => fs::read_dir(dir).and_then(entries),
            Some(root) => open_in(root, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)
                .map_err(io::Error::from)
                .and_then(|fd| entries_of(&fd)),
        };
        match listed {
            Ok(mut entries) => {
                entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                Ok(Some(entries))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_path("list", &seen),
        }
    }

    /// Returns whether the path exists.
    pub fn exists(&self, path: &Path) -> Result<bool, PathError> {
        let found = match &self.mounted {
            None => fs::metadata(path).map(drop),
            Some(root) => open_in(root, path, OFlags::PATH | OFlags::CLOEXEC)
                .map(drop)
                .map_err(io::Error::from),
        };
        match found {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(PathError::new("look up", &self.join(path), error)),
        }
    }

    /// Returns whether the path is an executable file.
    pub fn is_program(&self, path: &Path) -> bool {
        let is_executable = |mode: u32| mode & 0o170_000 == 0o100_000 && mode & 0o111 != 0;
        match &self.mounted {
            None => fs::metadata(path).is_ok_and(|file| is_executable(file.permissions().mode())),
            Some(root) => open_in(root, path, OFlags::PATH | OFlags::CLOEXEC)
                .and_then(|file| rustix::fs::fstat(&file))
                .is_ok_and(|stat| is_executable(stat.st_mode)),
        }
    }
}

/// Opens a path as a process with this root directory (`chroot`) would.
fn open_in(root: &Path, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let open_root = || {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, root, flags, Mode::empty())
    };
    let root = retry_on_intr(open_root)?;
    retry_on_intr(|| openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT))
}

fn entries(listed: fs::ReadDir) -> io::Result<Vec<DirEntry>> {
    let entry = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        let kind = entry.file_type()?;
        let (is_dir, is_file) = (kind.is_dir(), kind.is_file());
        Ok(DirEntry { name: entry.file_name(), is_dir, is_file })
    };
    listed.map(entry).collect()
}

/// Lists a directory by its descriptor, so that it cannot be swapped for a link.
fn entries_of(fd: &OwnedFd) -> io::Result<Vec<DirEntry>> {
    use std::os::unix::ffi::OsStringExt as _;

    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let kind = entry.file_type();
            let (is_dir, is_file) = (kind.is_dir(), kind.is_file());
            let name = OsString::from_vec(name.to_vec());
            entries.push(DirEntry { name, is_dir, is_file });
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_of_a_mounted_system_stay_within_it() {
        let temp = tempfile::tempdir().unwrap();
        let (root, outside) = (temp.path().join("root"), temp.path().join("outside"));
        fs::create_dir_all(root.join("etc/conf.d")).unwrap();
        fs::write(&outside, "outside").unwrap();
        fs::write(root.join("etc/a"), "inside").unwrap();
        symlink("/etc/a", root.join("etc/absolute")).unwrap();
        symlink(&outside, root.join("etc/out")).unwrap();
        symlink("../../../outside", root.join("etc/up")).unwrap();
        fs::write(root.join("etc/conf.d/b"), "").unwrap();
        let system = SystemRoot::mounted_at(&root);
        let read = |path: &str| system.read(Path::new(path), 100).unwrap();
        assert_eq!(read("/etc/absolute").unwrap(), b"inside");
        assert_eq!((read("/etc/out"), read("/etc/up"), read("/none")), (None, None, None));
        let names = |dir: &str| {
            let entries = system.list(Path::new(dir)).unwrap().unwrap();
            entries.into_iter().map(|entry| (entry.name, entry.is_dir)).collect::<Vec<_>>()
        };
        assert_eq!(names("/etc/conf.d"), [("b".into(), false)]);
        assert_eq!(names("/etc")[2], ("conf.d".into(), true));
        assert_eq!(system.list(Path::new("/none")).unwrap(), None);
        assert!(!system.is_program(Path::new("/etc/a")));
    }
}
