//! Users of this host, from its user database (NSS).
//!
//! A statically linked program has only the NSS modules for `/etc/passwd` and `/etc/group`: it queries
//! directory services such as LDAP through `getent`, the host's own program. Loading the host's modules would
//! load its C library, of any version, into a process that runs as root.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

use oci_hooks_files::process::{ChildProgram, ProgramEnd};

/// Maximum size of a user's entry.
const MAX_ENTRY_BYTES: usize = 1 << 20;

/// A user of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostUser {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
}

/// Returns the user with this id; `None` if the database has no such user.
///
/// # Errors
///
/// Fails if the database cannot be queried.
#[expect(unsafe_code, reason = "users of directories such as LDAP are known to the C library only")]
pub fn user_by_id(uid: u32) -> io::Result<Option<HostUser>> {
    let find = |entry: *mut libc::passwd, buffer: &mut [libc::c_char], found| {
        // SAFETY: the structure, the buffer of the length that is given, and the result live through
        // the call, which writes to nothing else.
        unsafe { libc::getpwuid_r(uid, entry, buffer.as_mut_ptr(), buffer.len(), found) }
    };
    let found = look_up_user(find, |entry| {
        // SAFETY: name and home directory of a found entry are NUL-terminated strings in the buffer.
        let [name, home] = unsafe { [CStr::from_ptr(entry.pw_name), CStr::from_ptr(entry.pw_dir)] };
        let home = PathBuf::from(OsStr::from_bytes(home.to_bytes()));
        HostUser { name: name.to_string_lossy().into_owned(), uid, gid: entry.pw_gid, home }
    })?;
    Ok(found.or_else(|| getent_passwd(&uid.to_string()).filter(|user| user.uid == uid)))
}

/// Returns the name of a user; `None` if the database has no such user or cannot be queried.
pub fn name(uid: u32) -> Option<String> {
    Some(user_by_id(uid).ok()??.name)
}

/// Queries the database for a user, and returns the result of `read` for the entry.
#[expect(unsafe_code, reason = "the C library fills a structure that rustix does not have")]
fn look_up_user<T>(
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
            // The buffer, which contains the entry's strings, is still alive.
            0 => return Ok(Some(read(&entry))),
            libc::ERANGE if buffer.len() < MAX_ENTRY_BYTES => buffer.resize(buffer.len() * 2, 0),
            // Some NSS modules report these for an unknown user.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Path of `getent`: `PATH` is not searched.
const GETENT: &str = "/usr/bin/getent";

/// Time limit for a directory service.
const GETENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Looks up a user with `getent`, if this program is statically linked.
fn getent_passwd(key: &str) -> Option<HostUser> {
    if !cfg!(target_feature = "crt-static") {
        return None;
    }
    let mut program = ChildProgram::new(Path::new(GETENT), Path::new("/"));
    program.argv = ["getent", "passwd", "--", key].map(OsStr::new).to_vec();
    program.timeout = Some(GETENT_TIMEOUT);
    let finished = program.run().ok()?;
    let printed =
        (finished.end == ProgramEnd::Exited(0)).then(|| String::from_utf8(finished.stdout).ok())?;
    parse_passwd(&printed?)
}

/// Parses `name:password:uid:gid:comment:home:shell`.
fn parse_passwd(text: &str) -> Option<HostUser> {
    let mut fields = text.lines().next()?.split(':');
    let name = fields.next()?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    let gid = fields.next()?.parse().ok()?;
    Some(HostUser { name, uid, gid, home: fields.nth(1)?.into() })
}

/// Restricts name lookups of a statically linked program to files and DNS, regardless of
/// `/etc/nsswitch.conf`: see the module's documentation. To be called before the first lookup; does
/// nothing in a dynamically linked program.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
#[expect(unsafe_code, reason = "the C library alone knows how it looks names up")]
pub fn use_files_and_dns() {
    unsafe extern "C" {
        fn __nss_configure_lookup(
            database: *const libc::c_char,
            services: *const libc::c_char,
        ) -> libc::c_int;
    }
    for (database, services) in
        [(c"passwd", c"files"), (c"group", c"files"), (c"hosts", c"files dns")]
    {
        // SAFETY: both are NUL-terminated strings, which live as long as the program. The call fails only
        // for an unknown database or service.
        unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}

/// Does nothing: this program is not statically linked with glibc.
#[cfg(not(all(target_env = "gnu", target_feature = "crt-static")))]
pub fn use_files_and_dns() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_id() {
        let root = user_by_id(0).unwrap().unwrap();
        assert_eq!((root.name.as_str(), root.uid, root.gid), ("root", 0, 0));
        assert!(root.home.is_absolute());
        assert_eq!(user_by_id(0x7fff_fff0).unwrap(), None);
    }

    #[test]
    fn output_of_getent_is_parsed() {
        let home = PathBuf::from("/home/jo");
        let user = HostUser { name: "jo".to_owned(), uid: 70_001, gid: 70_000, home };
        assert_eq!(parse_passwd("jo:*:70001:70000:Jo:/home/jo:/bin/sh\n"), Some(user));
        for text in ["", "jo", "jo:x:", "jo:x:1", "jo:x:a:1", "jo:x:1:-1:", "jo:x:1:1:"] {
            assert_eq!(parse_passwd(text), None, "{text:?}");
        }
    }
}
