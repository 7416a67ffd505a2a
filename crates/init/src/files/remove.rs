//! Removal of a file, or of a directory with its content.

use std::ffi::CString;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;

use super::{MAX_DEPTH, is_missing, to_c_string};
use crate::at;

const EISDIR: i32 = 21;
const EACCES: i32 = 13;
const EPERM: i32 = 1;

/// Removes a file or directory, if it exists. Follows no link.
pub fn remove(dir: BorrowedFd<'_>, name: &CString) -> io::Result<()> {
    remove_at(dir, name, 0)
}

/// Removes the content of a directory.
pub fn clear_directory(dir: OwnedFd) -> io::Result<()> {
    clear(dir, 0)
}

fn remove_at(dir: BorrowedFd<'_>, name: &CString, depth: usize) -> io::Result<()> {
    let is_directory = match at::remove_file(dir, name) {
        Ok(()) => return Ok(()),
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) if error.raw_os_error() == Some(EISDIR) => true,
        // POSIX specifies this error for directories; files that cannot be removed cause it too.
        Err(error) if error.raw_os_error() == Some(EPERM) => false,
        Err(error) => return Err(error),
    };
    if depth == MAX_DEPTH {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    if !is_directory {
        return at::remove_directory(dir, name);
    }
    if at::remove_directory(dir, name).is_ok() {
        return Ok(());
    }
    match at::open_directory(dir, name) {
        Ok(below) => clear(below, depth)?,
        Err(error) if is_missing(&error) => return Ok(()),
        Err(error) => return Err(error),
    }
    match at::remove_directory(dir, name) {
        Err(error) if !is_missing(&error) => Err(error),
        _ => Ok(()),
    }
}

fn clear(dir: OwnedFd, depth: usize) -> io::Result<()> {
    let mut names = Vec::new();
    at::for_each_name(dir.as_fd(), |name| names.push(name.to_vec()))?;
    let mut may_write = true;
    for name in names {
        let name = to_c_string(&name)?;
        match remove_at(dir.as_fd(), &name, depth + 1) {
            // The owner has made the directory read-only.
            Err(error) if may_write && error.raw_os_error() == Some(EACCES) => {
                may_write = false;
                File::from(dir.try_clone()?).set_permissions(Permissions::from_mode(0o700))?;
                remove_at(dir.as_fd(), &name, depth + 1)?;
            }
            result => result?,
        }
    }
    Ok(())
}
