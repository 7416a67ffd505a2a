//! Users and groups that can change a file besides its owner: by its permission bits and its access control lists.
//!
//! Permission bits are not enough: with a POSIX ACL, those of the group are its mask, and `rwxrwxr-x root root` may be
//! writable by any user.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::{fmt, io};

use rustix::fs::{FileType, Stat, getxattr, getxattr_query};
use rustix::io::Errno;

use super::super::beneath::descriptor_path;
use super::acl::{AclSubject, nfs4_writers, posix_writers};
use super::read_bounded;

/// Permission of a user or group to change a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteAccess {
    pub who: AccessSubject,
    pub by: PermittedBy,
}

/// A user or group with a permission, or everyone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessSubject {
    User(u32),
    /// All members of a group.
    Group(u32),
    Everyone,
    /// A user or group of a file server, by its name there.
    Principal(String),
}

/// The permission by which a file can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermittedBy {
    Mode,
    /// An entry of the file's POSIX ACL.
    Acl,
    /// An entry of a directory's default ACL, which new files in it inherit.
    DefaultAcl,
    /// An entry of the file's NFSv4 ACL.
    Nfs4Acl,
}

/// Returns the users and groups that can change an open file besides its owner.
///
/// The descriptor may be opened with `O_PATH`, but may not be a symbolic link. For a directory the result
/// contains users who can create and remove files in it, sticky or not, and users permitted by its default
/// ACL to change new files in it.
///
/// # Errors
///
/// Fails if an ACL cannot be read or parsed.
pub fn writers(file: BorrowedFd<'_>, stat: &Stat) -> io::Result<Vec<WriteAccess>> {
    let group = AccessSubject::Group(stat.st_gid);
    let mut writers = Vec::new();
    let mut add = |who, by| writers.push(WriteAccess { who, by });
    let list = attribute(file, c"system.posix_acl_access")?;
    if let XattrValue::Value(list) = list {
        for subject in posix_writers(&list).ok_or_else(malformed_error)? {
            match subject {
                AclSubject::OwningGroup => add(group.clone(), PermittedBy::Mode),
                AclSubject::Everyone => add(AccessSubject::Everyone, PermittedBy::Mode),
                named => add(named.resolve_subject(&group), PermittedBy::Acl),
            }
        }
    } else {
        if stat.st_mode & 0o002 != 0 {
            add(AccessSubject::Everyone, PermittedBy::Mode);
        }
        if stat.st_mode & 0o020 != 0 {
            add(group.clone(), PermittedBy::Mode);
        }
        // A file system has only one kind of ACL.
        if list == XattrValue::Unsupported
            && let XattrValue::Value(list) = attribute(file, c"system.nfs4_acl")?
        {
            for subject in nfs4_writers(&list).ok_or_else(malformed_error)? {
                add(subject.resolve_subject(&group), PermittedBy::Nfs4Acl);
            }
        }
    }
    if FileType::from_raw_mode(stat.st_mode).is_dir()
        && let XattrValue::Value(list) = attribute(file, c"system.posix_acl_default")?
    {
        // New files get the group of the process that creates them, or with the setgid bit that of the directory.
        let gives_group = stat.st_mode & 0o2000 != 0;
        let subjects = posix_writers(&list).ok_or_else(malformed_error)?;
        for subject in subjects.into_iter().filter(|s| gives_group || *s != AclSubject::OwningGroup)
        {
            add(subject.resolve_subject(&group), PermittedBy::DefaultAcl);
        }
    }
    Ok(writers)
}

impl AclSubject {
    fn resolve_subject(self, owning: &AccessSubject) -> AccessSubject {
        match self {
            AclSubject::OwningGroup => owning.clone(),
            AclSubject::Everyone => AccessSubject::Everyone,
            AclSubject::User(uid) => AccessSubject::User(uid),
            AclSubject::Group(gid) => AccessSubject::Group(gid),
            AclSubject::Principal(name) => AccessSubject::Principal(name),
        }
    }
}

/// Maximum size of an extended attribute in the kernel (`XATTR_SIZE_MAX`).
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

#[derive(PartialEq)]
enum XattrValue {
    Value(Vec<u8>),
    None,
    Unsupported,
}

fn attribute(file: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<XattrValue> {
    // `fgetxattr` fails for `O_PATH` descriptors; the link in /proc leads to the same file.
    let link = descriptor_path(file);
    // Most files have no ACL, and need no buffer for it.
    match getxattr_query(&*link, name) {
        Err(Errno::NODATA) => return Ok(XattrValue::None),
        Err(Errno::OPNOTSUPP) => return Ok(XattrValue::Unsupported),
        // The file is open, so only /proc can be missing.
        Err(Errno::NOENT) => return Err(io::Error::other("/proc is not mounted")),
        size => size?,
    };
    let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
    let size = match getxattr(&*link, name, value.as_mut_slice()) {
        // The ACL was removed meanwhile.
        Err(Errno::NODATA) => return Ok(XattrValue::None),
        size => size?,
    };
    value.truncate(size);
    Ok(XattrValue::Value(value))
}

fn malformed_error() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its access control list is malformed")
}

impl fmt::Display for AccessSubject {
    /// Writes "user 65534", "group 100", "everyone".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessSubject::User(uid) => write!(f, "user {uid}"),
            AccessSubject::Group(gid) => write!(f, "group {gid}"),
            AccessSubject::Everyone => f.write_str("everyone"),
            AccessSubject::Principal(name) => write!(f, "{name:?}"),
        }
    }
}

/// Size limit of `/etc/passwd` and `/etc/group`.
const MAX_DATABASE_BYTES: u64 = 4 << 20;

impl AccessSubject {
    /// Returns the name and id for messages: "the user alice (uid 1000)".
    pub fn display_name(&self) -> String {
        match (self.name(), self) {
            (Some(name), AccessSubject::User(uid)) => format!("the user {name} (uid {uid})"),
            (Some(name), AccessSubject::Group(gid)) => format!("the group {name} (gid {gid})"),
            _ => self.to_string(),
        }
    }

    /// Returns the name in `/etc/passwd` or `/etc/group`, for messages.
    pub fn name(&self) -> Option<String> {
        let (path, id) = match self {
            AccessSubject::User(uid) => ("/etc/passwd", uid),
            AccessSubject::Group(gid) => ("/etc/group", gid),
            AccessSubject::Everyone | AccessSubject::Principal(_) => return None,
        };
        let text = read_bounded(Path::new(path), MAX_DATABASE_BYTES).ok()?;
        String::from_utf8_lossy(&text).lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            (fields.nth(1)?.parse() == Ok(*id)).then(|| name.to_owned())
        })
    }
}
