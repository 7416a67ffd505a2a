//! Acting as the user who asked: what they may not reach, root does not reach for them.
//!
//! Only how the kernel checks access to files changes (`fsuid`, `fsgid`, supplementary groups): the
//! user cannot send signals to what acts so, nor trace it.

use std::ffi::{CStr, CString};
use std::io;
use std::panic::resume_unwind;
use std::ptr;
use std::thread;

use rustix::process::{Gid, Uid};
use rustix::thread::set_thread_groups;

/// A user of the host on whose behalf root opens, makes and reads files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The ids of the supplementary groups.
    pub groups: Vec<u32>,
}

impl Caller {
    /// Returns the user with this id, with the supplementary groups that the system's user database
    /// (NSS) has for them; none for a user whom it does not know.
    pub fn from_ids(uid: u32, gid: u32) -> Self {
        Caller { uid, gid, groups: supplementary_groups(uid, gid) }
    }

    /// Calls `work` on a thread of its own that has the user's access to files, and no more.
    ///
    /// # Errors
    ///
    /// Fails, without calling it, if this process may not become the user.
    pub fn act<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let result = thread::scope(|scope| {
            // The thread ends with its work, so nothing has to be set back.
            scope.spawn(|| self.become_user().map(|()| work())).join()
        });
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn become_user(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups)?;
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

/// More than any entry of a user takes.
const MAX_ENTRY_BYTES: usize = 1 << 20;

/// More groups than the kernel lets anybody have.
const MAX_GROUPS: usize = 65_536;

/// Returns the ids of the user and group of a user whose name the system's user database (NSS) has;
/// none if it does not have it.
///
/// # Errors
///
/// Fails if the database cannot be asked.
#[expect(unsafe_code, reason = "users of directories such as LDAP are known to the C library only")]
pub fn ids_by_name(name: &str) -> io::Result<Option<(u32, u32)>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let find = |entry: *mut libc::passwd, buffer: &mut [libc::c_char], found| {
        // SAFETY: the name is a string with its end; the structure, the buffer of the length that is
        // given, and the result live through the call, which writes to nothing else.
        unsafe { libc::getpwnam_r(name.as_ptr(), entry, buffer.as_mut_ptr(), buffer.len(), found) }
    };
    look_up(find, |entry| (entry.pw_uid, entry.pw_gid))
}

/// Asks the database for a user, and returns what `read` makes of their entry.
#[expect(unsafe_code, reason = "the C library fills a structure that rustix does not have")]
fn look_up<T>(
    find: impl Fn(*mut libc::passwd, &mut [libc::c_char], *mut *mut libc::passwd) -> libc::c_int,
    read: impl FnOnce(&libc::passwd) -> T,
) -> io::Result<Option<T>> {
    let mut buffer: Vec<libc::c_char> = vec![0; 1024];
    loop {
        // SAFETY: all zeros is a value of the structure: null pointers and numbers.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = ptr::null_mut();
        match find(&raw mut entry, &mut buffer, &raw mut found) {
            0 if found.is_null() => return Ok(None),
            // The buffer, which its strings are in, is still there.
            0 => return Ok(Some(read(&entry))),
            libc::ERANGE if buffer.len() < MAX_ENTRY_BYTES => buffer.resize(buffer.len() * 2, 0),
            // So some databases say that they do not know somebody.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Returns the supplementary groups of a user, as `initgroups` would set them.
#[expect(unsafe_code, reason = "users of directories such as LDAP are known to the C library only")]
fn supplementary_groups(uid: u32, gid: u32) -> Vec<u32> {
    let find = |entry: *mut libc::passwd, buffer: &mut [libc::c_char], found| {
        // SAFETY: the structure, the buffer of the length that is given, and the result live through
        // the call, which writes to nothing else.
        unsafe { libc::getpwuid_r(uid, entry, buffer.as_mut_ptr(), buffer.len(), found) }
    };
    // SAFETY: an entry that was found has a name, a string with its end, in the buffer.
    let name = look_up(find, |entry| unsafe { CStr::from_ptr(entry.pw_name) }.to_owned());
    let Ok(Some(name)) = name else { return Vec::new() };
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).expect("there are few");
        // SAFETY: the name is a string with its end, and the list has room for so many groups.
        let result =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let wanted = usize::try_from(count).unwrap_or_default();
        if result >= 0 {
            groups.truncate(wanted);
            return groups;
        }
        if wanted <= groups.len() || wanted > MAX_GROUPS {
            return Vec::new();
        }
        groups.resize(wanted, 0);
    }
}

/// Returns the user and group that new files of this process belong to.
pub fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Tells if a user id is that of root.
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
        let own = Caller { uid, gid, groups: Vec::new() };
        if !is_root(uid) {
            // Only root may set groups, so there is nobody else to become.
            assert!(own.act(|| ()).is_err());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let user = Caller { uid: 12345, gid: 12346, groups: vec![12347] };
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

    #[test]
    fn groups_come_from_the_database_of_users() {
        assert_eq!(Caller::from_ids(0, 0).groups.first(), Some(&0));
        assert_eq!(Caller::from_ids(0x7fff_fff0, 0x7fff_fff0).groups, [0_u32; 0]);
    }

    #[test]
    fn users_are_found_by_their_name() {
        assert_eq!(ids_by_name("root").unwrap(), Some((0, 0)));
        for name in ["no-such-user-anywhere", "", "ro\0ot"] {
            assert_eq!(ids_by_name(name).unwrap(), None, "{name:?}");
        }
    }
}
