//! Mounts the file systems in files, by loop devices. It creates no file system: the engine does, for containers with a
//! limit of disk space.

use std::ffi::CStr;
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use tracing::debug;

/// Number of tries to get a free device that another process takes first.
const MAX_TRIES: usize = 256;

const CONTROL: &str = "/dev/loop-control";

/// Directory with a subdirectory for each block device.
const DISKS: &str = "/sys/block";
/// File with the path of a loop device's backing file, below the device's directory in [`DISKS`].
const CONTENT: &str = "loop/backing_file";

// From `linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_config` of `linux/loop.h`, with `struct loop_info64` in it.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// Device, inode, device number, offset, size limit; always zero.
    numbers: [u64; 5],
    /// Number of the device, type and length of the key; always zero.
    more: [u32; 3],
    flags: u32,
    /// Names of the file and the cipher, and the key.
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    /// Device number of the backing file's file system.
    device: u64,
    /// Inode number of the backing file.
    inode: u64,
    rest: [u64; 27],
}

/// Mounts the file system in a file. The loop device is detached when the file system is unmounted, or at once
/// if this process dies before the mount.
pub fn mount_file(
    file: &Path,
    target: &Path,
    kind: &CStr,
    flags: MountFlags,
    options: &CStr,
) -> Result<(), PathError> {
    let backing = OpenOptions::new().read(true).write(true).open(file).with_path("open", file)?;
    // The open device stays attached until the mount. A file that was just unmounted may still be in use
    // in another mount namespace, and two devices with the same file would corrupt it.
    let (_device, path) = match find_attached(&backing, file).with_path("look up", file)? {
        Some(found) => found,
        None => attach(&backing)?,
    };
    debug!(file = %file.display(), device = %path.display(), on = %target.display(), "mount a file");
    mount(&path, target, kind, flags, options).with_path("mount a file system image on", target)
}

/// Returns the loop device to which a file is already attached, if any.
fn find_attached(backing: &File, path: &Path) -> io::Result<Option<(File, PathBuf)>> {
    let wanted = backing.metadata()?;
    let disks = fs::read_dir(DISKS).into_iter().flatten().flatten();
    // Do not open devices of other files: opening triggers events for programs that watch them.
    let has_name = |disk: &DirEntry| {
        let name = fs::read_to_string(disk.path().join(CONTENT)).unwrap_or_default();
        Path::new(name.trim_end()).file_name() == path.file_name()
    };
    for path in disks.filter(has_name).map(|disk| Path::new("/dev").join(disk.file_name())) {
        let Ok(device) = File::open(&path) else { continue };
        // Checked after opening: an open device cannot be detached and reused.
        let info = status(device.as_raw_fd());
        if info.is_ok_and(|info| (info.device, info.inode) == (wanted.dev(), wanted.ino())) {
            return Ok(Some((device, path)));
        }
    }
    Ok(None)
}

/// Attaches a file to a free loop device.
fn attach(backing: &File) -> Result<(File, PathBuf), PathError> {
    let path = Path::new(CONTROL);
    let control = OpenOptions::new().read(true).write(true).open(path).with_path("open", path)?;
    let mut tries = 0;
    loop {
        let number =
            free_number(control.as_raw_fd()).with_path("get a free loop device from", path)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device =
            OpenOptions::new().read(true).write(true).open(&path).with_path("open", &path)?;
        match configure(device.as_raw_fd(), backing.as_raw_fd()) {
            Err(error) if is_taken(&error) && tries < MAX_TRIES => tries += 1,
            result => return result.with_path("attach a file to", &path).map(|()| (device, path)),
        }
    }
}

fn is_taken(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::BUSY.raw_os_error())
}

#[expect(unsafe_code, reason = "rustix has no calls for loop devices")]
fn free_number(control: RawFd) -> io::Result<i32> {
    // SAFETY: the call has no argument; the descriptor is open.
    let number = unsafe { libc::ioctl(control, LOOP_CTL_GET_FREE) };
    if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

#[expect(unsafe_code, reason = "rustix has no calls for loop devices")]
fn configure(device: RawFd, backing: RawFd) -> io::Result<()> {
    let config = LoopConfig {
        fd: backing.try_into().expect("descriptors are not negative"),
        block_size: 0,
        numbers: [0; 5],
        more: [0; 3],
        flags: LO_FLAGS_AUTOCLEAR,
        names: [0; 160],
        init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: the structure is laid out as the kernel's, which only reads it, and lives through the
    // call; both descriptors are open.
    let result = unsafe { libc::ioctl(device, LOOP_CONFIGURE, &raw const config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[expect(unsafe_code, reason = "rustix has no calls for loop devices")]
fn status(device: RawFd) -> io::Result<LoopInfo> {
    let mut info = LoopInfo { device: 0, inode: 0, rest: [0; 27] };
    // SAFETY: the structure is as large as the kernel's, which writes it whole, and any numbers are
    // valid in it; the descriptor is open.
    let result = unsafe { libc::ioctl(device, LOOP_GET_STATUS64, &raw mut info) };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

// A structure of another size would be read or written beyond its end.
const _: () = assert!(size_of::<LoopConfig>() == 304 && size_of::<LoopInfo>() == 232);
