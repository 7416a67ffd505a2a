//! A limit for what a container writes to its disk: a file system of its own, in a file.
//!
//! The file is next to the directory that the file system is mounted on, and sparse: it takes as much
//! of the host's disk as was written. That of a container lives no longer than the container, so nothing in
//! it has to survive a power cut. That of [volumes](super::volumes) stays.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek, statvfs};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::error::ContainerError;
use crate::runtime::DEFAULT_PATH;
use crate::sys::fs::PathContext as _;
use crate::sys::loop_device;
use crate::sys::mount::unmount;
use crate::sys::process::{End, Limit, Program};
use crate::sys::trash::Trash;

const MKFS: &str = "mkfs.ext4";

/// It writes less than a MiB.
const MKFS_TIMEOUT: Duration = Duration::from_secs(60);

/// No tables written that the sparse file has as zeros already; and what is written in one place, without
/// copies.
const MKFS_OPTIONS: [&str; 4] = [
    "-q",
    "-F",
    "-E",
    "lazy_itable_init=1,lazy_journal_init=1,nodiscard,packed_meta_blocks=1,num_backup_sb=0",
];

/// How long what is in a file system lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// As long as a container.
    Container,
    Kept,
}

impl Life {
    fn mkfs_options(self) -> &'static [&'static str] {
        match self {
            // Nobody reads a journal of it after a crash, and root is whom the limit is for.
            Life::Container => &["-m0", "-O", "^has_journal,^resize_inode,sparse_super2"],
            // The smallest journal that there can be; and something kept back for root, so that a job
            // that fills it does not keep the next one from having it. Root of a container with a user
            // namespace is somebody else.
            Life::Kept => &["-m1", "-O", "^resize_inode,sparse_super2", "-J", "size=4"],
        }
    }

    fn mount_options(self) -> &'static CStr {
        match self {
            // Or a thread of the kernel would write all the tables, and all would wait for the host's
            // disk.
            Life::Container => c"noinit_itable,nobarrier",
            Life::Kept => c"noinit_itable",
        }
    }
}

/// How much of what it says is worth showing.
const SHOWN_BYTES: u64 = 4096;

/// Returns the file that the file system on a directory is in.
pub fn file(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// What the name of a file ends in that has a container's id for the rest of its name.
pub const SUFFIX: &str = ".ext4";

/// Makes a file system for so many bytes, and mounts it on a directory.
pub fn make(dir: &Path, size_bytes: u64) -> Result<(), ContainerError> {
    let path = file(dir);
    write(&path, size_bytes, Life::Container)?;
    mount(dir, Life::Container)
}

/// Writes a new file with a file system for so many bytes.
pub fn write(path: &Path, size_bytes: u64, life: Life) -> Result<(), ContainerError> {
    let mut options = OpenOptions::new();
    let new = options.write(true).create_new(true).mode(0o600).open(path).at("create", path)?;
    // Made in memory: the program waits until what it wrote is on the disk, which nobody needs, and
    // blocks of the disk that were never used are faster to give back too.
    let memory = memfd_create("disk", MemfdFlags::CLOEXEC).at("make in memory", path)?;
    let memory = File::from(memory);
    memory.set_len(size_bytes).at("make in memory", path)?;
    format(&memory, path, life)?;
    copy_data(&memory, &new).at("write", path)?;
    if life == Life::Kept {
        new.sync_all().at("write", path)?;
    }
    Ok(())
}

/// Mounts the file system of a directory on it.
pub fn mount(dir: &Path, life: Life) -> Result<(), ContainerError> {
    // Overlays make their whiteouts all the same.
    let flags = MountFlags::NODEV;
    loop_device::mount_file(&file(dir), dir, c"ext4", flags, life.mount_options())?;
    // As the directory below, which only its owner can look into.
    fs::set_permissions(dir, Permissions::from_mode(0o700)).at("change the mode of", dir)?;
    Ok(())
}

/// Returns whether the file system of a directory is as good as full.
pub fn is_full(dir: &Path) -> bool {
    statvfs(dir).is_ok_and(|stat| stat.f_bavail < stat.f_blocks / 1000)
}

/// Removes the directory with all in it, or sets it aside, and what is mounted on it. Nothing there is
/// fine.
pub fn remove(dir: &Path, trash: &Trash) -> Result<(), ContainerError> {
    unmount(dir)?;
    trash.remove(dir)?;
    let path = file(dir);
    match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => Ok(result.at("remove", &path)?),
    }
}

/// Copies a file with its holes.
fn copy_data(mut from: &File, mut to: &File) -> io::Result<()> {
    let size_bytes = from.metadata()?.len();
    to.set_len(size_bytes)?;
    let mut at = 0;
    loop {
        let start = match seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            start => start?,
        };
        at = seek(from, SeekFrom::Hole(start))?;
        seek(from, SeekFrom::Start(start))?;
        seek(to, SeekFrom::Start(start))?;
        io::copy(&mut from.by_ref().take(at - start), &mut to)?;
    }
}

/// Makes a file system in a file, which is called by a path in messages.
fn format(file: &File, path: &Path, life: Life) -> Result<(), ContainerError> {
    let directories = std::env::split_paths(OsStr::new(DEFAULT_PATH));
    let mkfs = directories.map(|dir| dir.join(MKFS)).find(|path| path.is_file());
    let mkfs = mkfs.ok_or(ContainerError::NoMkfs)?;
    let mut argv = vec![mkfs.as_os_str()];
    let options = [&MKFS_OPTIONS[..], life.mkfs_options(), &["--"]].concat();
    argv.extend(options.iter().map(OsStr::new));
    let name = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    argv.push(OsStr::new(&name));
    let program = Program {
        path: &mkfs,
        argv,
        env: Vec::new(),
        cwd: Path::new("/"),
        stdin: b"",
        interrupt: None,
        timeout: Some(MKFS_TIMEOUT),
        stdout: Limit::Truncate(0),
        stderr: Limit::Truncate(SHOWN_BYTES),
    };
    let finished = program.run()?;
    if finished.end == End::Exited(0) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&finished.stderr);
    let message = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(ContainerError::Mkfs { path: path.to_owned(), message })
}
