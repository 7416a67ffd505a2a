//! Opening and making what is beneath a directory, with the access of a user.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, mkdirat, openat2,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{HostFile, PATH_ONLY};
use crate::sys::beneath::retry;
use crate::sys::caller::Caller;
use crate::sys::fs::{PathContext as _, PathError};

/// No way out, and nothing that somebody could point elsewhere.
pub(super) const STRICT: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Opens a path beneath a directory, with the access of a user if it is for one.
pub(super) fn open_as(
    root: BorrowedFd<'_>,
    relative: &Path,
    name: &Path,
    caller: Option<&Caller>,
) -> Result<HostFile, PathError> {
    let path = or_dot(relative);
    let opened = act(caller, || {
        let file = retry(|| openat2(root, path, PATH_ONLY, Mode::empty(), STRICT))?;
        if caller.is_some() {
            // A descriptor like this one is given to anybody who can get there.
            check_readable(file.as_fd())?;
        }
        Ok(file)
    });
    HostFile::from_fd(opened.and_then(|opened| opened).at("open", name)?, name)
}

/// Returns the name that a directory has beneath itself if there is none.
pub(super) fn or_dot(relative: &Path) -> &Path {
    if relative.as_os_str().is_empty() { Path::new(".") } else { relative }
}

/// Does something with the access of a user if it is for one, on this thread otherwise.
pub(super) fn act<T: Send>(
    caller: Option<&Caller>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<io::Result<T>> {
    match caller {
        Some(caller) => caller.act(work),
        None => Ok(work()),
    }
}

/// Makes the missing ones of the directories of a path. No symbolic link is followed.
pub(super) fn make_dirs(
    root: BorrowedFd<'_>,
    relative: &Path,
    (uid, gid): (u32, u32),
) -> io::Result<()> {
    let mut directory = retry(|| openat2(root, c".", PATH_ONLY, Mode::empty(), STRICT))?;
    for name in relative {
        let made = match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = PATH_ONLY | OFlags::DIRECTORY;
        directory = retry(|| openat2(directory.as_fd(), name, flags, Mode::empty(), STRICT))?;
        // Somebody else may have put another one there meanwhile, which is not given away.
        if made && fstat(&directory)?.st_uid == geteuid().as_raw() && uid != geteuid().as_raw() {
            let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            chownat(&directory, c"", owner.0, owner.1, AtFlags::EMPTY_PATH)?;
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "rustix passes no empty path to faccessat2")]
fn check_readable(file: BorrowedFd<'_>) -> io::Result<()> {
    let stat = fstat(file)?;
    let enter = if FileType::from_raw_mode(stat.st_mode).is_dir() { libc::X_OK } else { 0 };
    // SAFETY: the path is a string with its end, and the descriptor is open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::R_OK | enter,
            libc::AT_EMPTY_PATH | libc::AT_EACCESS,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
