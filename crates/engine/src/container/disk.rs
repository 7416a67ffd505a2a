//! A disk limit of a container: a separate file system, in a file.
//!
//! The file is next to the mount point and sparse: it takes as much of the host's disk as was written. A
//! container's file system lives no longer than the container, so nothing in it has to survive a power
//! failure. The file system of [volumes](super::volumes) is kept.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::find::DEFAULT_PATH;
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_files::process::{ChildProgram, OutputLimit, ProgramEnd};
use oci_hooks_host::loop_device;
use oci_hooks_host::mount::unmount;
use oci_hooks_host::trash::Trash;
use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek, statvfs};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::error::ContainerError;

const MKFS: &str = "mkfs.ext4";

/// Timeout of mkfs, which writes less than a MiB.
const MKFS_TIMEOUT: Duration = Duration::from_secs(60);

/// Options that skip tables, which are zeros in the sparse file anyway, and pack metadata without backup copies.
const MKFS_OPTIONS: [&str; 4] = [
    "-q",
    "-F",
    "-E",
    "lazy_itable_init=1,lazy_journal_init=1,nodiscard,packed_meta_blocks=1,num_backup_sb=0",
];

/// Lifetime of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskLifetime {
    /// As long as a container: no file has to survive a crash.
    Container,
    /// Longer than any container.
    Kept,
}

impl DiskLifetime {
    fn mkfs_options(self) -> &'static [&'static str] {
        match self {
            // The file system is not used after a crash, so it needs no journal; and the limit is for root, too.
            DiskLifetime::Container => &["-m0", "-O", "^has_journal,^resize_inode,sparse_super2"],
            // The smallest possible journal; and blocks reserved for root, so that a job that fills the file
            // system does not block the next job. Root of a user namespace cannot use these blocks.
            DiskLifetime::Kept => &["-m1", "-O", "^resize_inode,sparse_super2", "-J", "size=4"],
        }
    }

    fn mount_options(self) -> &'static CStr {
        match self {
            // Otherwise a kernel thread would write all tables, and processes would wait for the host's disk.
            DiskLifetime::Container => c"noinit_itable,nobarrier",
            DiskLifetime::Kept => c"noinit_itable",
        }
    }
}

/// Maximum size of messages from mkfs.
const SHOWN_BYTES: u64 = 4096;

/// Returns the path of the file that holds the file system mounted on a directory.
pub fn file(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// Suffix of a file that holds a file system; the rest of its name is that of the mount point, such
/// as the container's id.
pub const SUFFIX: &str = ".ext4";

/// Creates a file system of this size, and mounts it on a directory.
pub fn make(dir: &Path, size_bytes: u64) -> Result<(), ContainerError> {
    let path = file(dir);
    write(&path, size_bytes, DiskLifetime::Container)?;
    mount(dir, DiskLifetime::Container)
}

/// Writes a new file with a file system of this size.
pub fn write(path: &Path, size_bytes: u64, life: DiskLifetime) -> Result<(), ContainerError> {
    let mut options = OpenOptions::new();
    let new =
        options.write(true).create_new(true).mode(0o600).open(path).with_path("create", path)?;
    // Created in memory: mkfs would wait until its data is on disk, which is not needed; and disk blocks that
    // were never used are faster to free.
    let memory = memfd_create("disk", MemfdFlags::CLOEXEC).with_path("make in memory", path)?;
    let memory = File::from(memory);
    memory.set_len(size_bytes).with_path("make in memory", path)?;
    format(&memory, path, life)?;
    copy_data(&memory, &new).with_path("write", path)?;
    if life == DiskLifetime::Kept {
        new.sync_all().with_path("write", path)?;
    }
    Ok(())
}

/// Mounts a file system on a directory, from the file that [`file()`] names.
pub fn mount(dir: &Path, life: DiskLifetime) -> Result<(), ContainerError> {
    // Overlays can create their whiteouts nevertheless.
    let flags = MountFlags::NODEV;
    loop_device::mount_file(&file(dir), dir, c"ext4", flags, life.mount_options())?;
    // The mode of the directory below, which only its owner can enter.
    fs::set_permissions(dir, Permissions::from_mode(0o700)).with_path("change the mode of", dir)?;
    Ok(())
}

/// Returns whether the file system mounted on a directory has less than 0.1 % of free space.
pub fn is_full(dir: &Path) -> bool {
    statvfs(dir).is_ok_and(|stat| stat.f_bavail < stat.f_blocks / 1000)
}

/// Unmounts and removes a directory with all files, and the file that holds its file system; moves
/// files that cannot be removed to the trash. Missing files are no error.
pub fn remove(dir: &Path, trash: &Trash) -> Result<(), ContainerError> {
    unmount(dir)?;
    trash.remove(dir)?;
    Ok(trash.remove(&file(dir))?)
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

/// Creates a file system in a file; messages name it by a path.
fn format(file: &File, path: &Path, life: DiskLifetime) -> Result<(), ContainerError> {
    let directories = std::env::split_paths(OsStr::new(DEFAULT_PATH));
    let mkfs = directories.map(|dir| dir.join(MKFS)).find(|path| path.is_file());
    let mkfs = mkfs.ok_or(ContainerError::NoMkfs)?;
    let mut argv = vec![mkfs.as_os_str()];
    let options = [&MKFS_OPTIONS[..], life.mkfs_options(), &["--"]].concat();
    argv.extend(options.iter().map(OsStr::new));
    let name = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    argv.push(OsStr::new(&name));
    let program = ChildProgram {
        argv,
        timeout: Some(MKFS_TIMEOUT),
        stdout: OutputLimit::Truncate(0),
        stderr: OutputLimit::Truncate(SHOWN_BYTES),
        ..ChildProgram::new(&mkfs, Path::new("/"))
    };
    let finished = program.run()?;
    if finished.end == ProgramEnd::Exited(0) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&finished.stderr);
    let message = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(ContainerError::Mkfs { path: path.to_owned(), message })
}
