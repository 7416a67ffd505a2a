//! Accesses files with the permissions of a user of the host. The engine creates mount points with it, and checks
//! devices.
//!
//! Only the ids for file access change (`fsuid`, `fsgid`, supplementary groups): the user can neither
//! send signals to the thread, nor trace it.

use std::io;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::thread::set_thread_groups;
use tracing::debug;

use super::thread;

/// A user, without supplementary groups, for accessing files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileUser {
    pub uid: u32,
    pub gid: u32,
}

impl FileUser {
    /// Calls `work` on a new thread that accesses files with the user's permissions only.
    ///
    /// # Errors
    ///
    /// Fails without calling `work` if this process may not become the user.
    pub fn run_as_user<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::run(|| self.become_user().map(|()| work()))
    }

    fn become_user(&self) -> io::Result<()> {
        debug!(uid = self.uid, gid = self.gid, "use the access of a user");
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&[])?;
        setfsgid(gid);
        // After the group, because it drops the capabilities that override file permissions.
        setfsuid(uid);
        // The calls report no errors, and with an invalid id return the current one.
        let is_done =
            setfsgid(Gid::from_raw(u32::MAX)) == gid && setfsuid(Uid::from_raw(u32::MAX)) == uid;
        if is_done { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

/// Returns the effective user and group id of this process, to which new files belong.
pub fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Returns whether a user id is root's.
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
    fn work_runs_with_only_the_permissions_of_the_user() {
        let (uid, gid) = own_ids();
        let own = FileUser { uid, gid };
        if !is_root(uid) {
            // Only root may set groups.
            assert!(own.run_as_user(|| ()).is_err());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let user = FileUser { uid: 12345, gid: 12346 };
        std::fs::set_permissions(dir.path(), mode(0o777)).unwrap();
        let path = dir.path().join("made");
        user.run_as_user(|| std::fs::write(&path, "").unwrap()).unwrap();
        let made = path.metadata().unwrap();
        assert_eq!((made.uid(), made.gid()), (12345, 12346));
        std::fs::set_permissions(dir.path(), mode(0o700)).unwrap();
        let denied = user.run_as_user(|| std::fs::read(&path).unwrap_err().kind()).unwrap();
        assert_eq!(denied, io::ErrorKind::PermissionDenied);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }
}
