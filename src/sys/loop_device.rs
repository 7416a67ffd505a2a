//! Loop devices: files as disks.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::fs::{PathContext as _, PathError};

/// How often a free device is asked for that somebody else takes meanwhile.
const MAX_TRIES: usize = 256;

const CONTROL: &str = "/dev/loop-control";

// From `linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_config` of `linux/loop.h`, with `struct loop_info64` in it.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    /// Device, inode, device number, offset, size limit, which all stay zero.
    numbers: [u64; 5],
    /// Number of the device, kind and length of the key, which all stay zero.
    more: [u32; 3],
    flags: u32,
    /// Name of the file, of the cipher, and the key.
    names: [u8; 64 + 64 + 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// Mounts the file system in a file. The device behind it goes when it is unmounted, or at once if
/// this process dies before it is mounted.
pub fn mount_file(
    file: &Path,
    target: &Path,
    kind: &CStr,
    flags: MountFlags,
    options: &CStr,
) -> Result<(), PathError> {
    let backing = OpenOptions::new().read(true).write(true).open(file).at("open", file)?;
    // Open until it is mounted: that keeps it.
    let (_device, path) = attach(&backing)?;
    mount(&path, target, kind, flags, options).at("mount a file on", target)
}

/// Makes a file the content of a device that nobody uses.
fn attach(backing: &File) -> Result<(File, PathBuf), PathError> {
    let path = Path::new(CONTROL);
    let control = OpenOptions::new().read(true).write(true).open(path).at("open", path)?;
    let mut tries = 0;
    loop {
        let number = free_number(control.as_raw_fd()).at("get a free loop device of", path)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path).at("open", &path)?;
        match configure(device.as_raw_fd(), backing.as_raw_fd()) {
            Err(error) if is_taken(&error) && tries < MAX_TRIES => tries += 1,
            result => return result.at("set up", &path).map(|()| (device, path)),
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
    let config = Config {
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

// A structure of another size would be read beyond its end.
const _: () = assert!(size_of::<Config>() == 304);
