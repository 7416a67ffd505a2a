//! Looks up users of this host in its user database (NSS). Users of images are not looked up here.
//!
//! A statically linked program has only the NSS modules for `/etc/passwd` and `/etc/group`: it queries
//! directory services such as LDAP through `getent`, the host's own program. Loading the host's modules would
//! load its C library, of any version, into a process that runs as root.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{Uid, User};
use oci_hooks_files::process::{ChildProgram, ProgramEnd};

/// A user of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostUser {
    pub name: String,
    pub home: PathBuf,
}

/// Returns the user with this id; `None` if the database has no such user or cannot be queried.
pub fn user_by_id(uid: u32) -> Option<HostUser> {
    let found = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let found = found.map(|User { name, dir, .. }| HostUser { name, home: dir });
    found.or_else(|| getent_passwd(uid))
}

/// Path of `getent`: `PATH` is not searched.
const GETENT: &str = "/usr/bin/getent";

/// Time limit for `getent`, which may query a directory service.
const GETENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Looks up a user with `getent`, if this program is statically linked.
fn getent_passwd(uid: u32) -> Option<HostUser> {
    if !cfg!(target_feature = "crt-static") {
        return None;
    }
    let key = uid.to_string();
    let mut program = ChildProgram::new(Path::new(GETENT), Path::new("/"));
    program.argv = ["getent", "passwd", "--", &key].map(OsStr::new).to_vec();
    program.timeout = Some(GETENT_TIMEOUT);
    let finished = program.run().ok()?;
    let printed =
        (finished.end == ProgramEnd::Exited(0)).then(|| String::from_utf8(finished.stdout).ok())?;
    parse_passwd(&printed?, uid)
}

/// Parses `name:password:uid:gid:comment:home:shell`; `None` if that is not the user with this id.
fn parse_passwd(text: &str, uid: u32) -> Option<HostUser> {
    let mut fields = text.lines().next()?.split(':');
    let name = fields.next()?.to_owned();
    fields.nth(1).filter(|found| found.parse() == Ok(uid))?;
    Some(HostUser { name, home: fields.nth(2)?.into() })
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
        let root = user_by_id(0).unwrap();
        assert_eq!(root.name, "root");
        assert!(root.home.is_absolute());
        assert_eq!(user_by_id(0x7fff_fff0), None);
    }

    #[test]
    fn output_of_getent_is_parsed() {
        let line = "jo:*:1:7:Jo:/home/jo:/bin/sh\n";
        let user = HostUser { name: "jo".to_owned(), home: "/home/jo".into() };
        assert_eq!(parse_passwd(line, 1), Some(user));
        assert_eq!(parse_passwd(line, 7), None);
        for text in ["", "jo", "jo:x:", "jo:x:1", "jo:x:a:1:Jo:/", "jo:x:1:1:"] {
            assert_eq!(parse_passwd(text, 1), None, "{text:?}");
        }
    }
}
