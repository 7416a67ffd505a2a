//! Accessing files as a user of the host.
//!
//! Only the kernel's checks of access to files change (`fsuid`, `fsgid`, supplementary groups): the user can
//! neither send signals to a thread that acts so, nor trace it.

use std::io;

use rustix::process::Uid;
use rustix::thread::set_thread_groups;
use tracing::debug;

use super::thread;

/// A user with whose access files are made and changed. It is in no supplementary group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileUser {
    pub uid: u32,
    pub gid: u32,
}

impl FileUser {
    /// Calls `work` on a thread of its own that has the user's access to files, and no more.
    ///
    /// # Errors
    ///
    /// Fails, without calling it, if this process may not become the user.
    pub fn act<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::run(|| self.become_user().map(|()| work()))
    }

    fn become_user(&self) -> io::Result<()> {
        debug!(uid = self.uid, gid = self.gid, "use the access of a user");
        set_thread_groups(&[])?;
        set_fsgid(self.gid)?;
        // The last one: with it go the capabilities that override permissions.
        set_fsuid(self.uid)
    }
}

/// Gives new files of the calling thread this owner, and root's access to files otherwise only if it
/// is root.
#[expect(unsafe_code, reason = "rustix has no setfsuid")]
fn set_fsuid(uid: u32) -> io::Result<()> {
    // SAFETY: the call takes a number and changes the calling thread alone.
    unsafe { libc::setfsuid(uid) };
    // It reports no errors; asked with a number that is none, it says what is set.
    // SAFETY: as above.
    let now = unsafe { libc::setfsuid(u32::MAX) };
    if now.cast_unsigned() == uid { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

#[expect(unsafe_code, reason = "rustix has no setfsgid")]
fn set_fsgid(gid: u32) -> io::Result<()> {
    // SAFETY: the call takes a number and changes the calling thread alone.
    unsafe { libc::setfsgid(gid) };
    // SAFETY: as above.
    let now = unsafe { libc::setfsgid(u32::MAX) };
    if now.cast_unsigned() == gid { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Returns the user and group that new files of this process belong to.
pub fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Returns whether a user id is that of root.
pub fn is_root(uid: u32) -> bool {
    Uid::from_raw(uid).is_root()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn mode(mode: u32) -> std::fs::Permissions {
        std::fs::Permissions::from_mode(mode)
    }

    #[test]
    fn work_is_done_with_the_access_of_the_user_and_nothing_stays_set() {
        let (uid, gid) = own_ids();
        let own = FileUser { uid, gid };
        if !is_root(uid) {
            // Only root may set groups, so there is nobody else to become.
            assert!(own.act(|| ()).is_err());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let user = FileUser { uid: 12345, gid: 12346 };
        std::fs::set_permissions(dir.path(), mode(0o777)).unwrap();
        let path = dir.path().join("made");
        user.act(|| std::fs::write(&path, "").unwrap()).unwrap();
        let made = path.metadata().unwrap();
        assert_eq!((made.uid(), made.gid()), (12345, 12346));
        std::fs::set_permissions(dir.path(), mode(0o700)).unwrap();
        let denied = user.act(|| std::fs::read(&path).unwrap_err().kind()).unwrap();
        assert_eq!(denied, io::ErrorKind::PermissionDenied);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }
}
