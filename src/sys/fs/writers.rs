//! Who may change a file besides its owner: by its permission bits, and by its access control lists.
//!
//! Permission bits do not say it: those of the group are the mask of a POSIX ACL where there is one, and
//! `rwxrwxr-x root root` may be anybody's to write.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, Stat, getxattr, getxattr_query};
use rustix::io::Errno;

use super::acl::{Subject, nfs4_writers, posix_writers};
use super::read_bounded;

/// Somebody who may change a file, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    pub who: Who,
    pub by: PermittedBy,
}

/// Users that a permission is for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Who {
    User(u32),
    /// All members of a group.
    Group(u32),
    Everyone,
    /// A user or group of a file server, by the name they have there.
    Principal(String),
}

/// What permits somebody to change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermittedBy {
    Mode,
    /// An entry of its POSIX ACL.
    Acl,
    /// An entry of the default ACL of a directory, which new files in it get.
    DefaultAcl,
    /// An entry of its NFSv4 ACL.
    Nfs4Acl,
}

/// Returns who may change an open file besides its owner.
///
/// The descriptor may be one that permits nothing by itself (`O_PATH`), but not that of a symbolic
/// link. Of a directory these are those who may make and remove files in it, sticky or not, and those
/// who may change what others make in it.
///
/// # Errors
///
/// Fails if a list cannot be read, or is not understood.
pub fn writers(file: BorrowedFd<'_>, stat: &Stat) -> io::Result<Vec<Writer>> {
    let group = Who::Group(stat.st_gid);
    let mut writers = Vec::new();
    let mut add = |who, by| writers.push(Writer { who, by });
    let list = attribute(file, c"system.posix_acl_access")?;
    if let Attribute::Value(list) = list {
        for subject in posix_writers(&list).ok_or_else(malformed)? {
            match subject {
                Subject::OwningGroup => add(group.clone(), PermittedBy::Mode),
                Subject::Everyone => add(Who::Everyone, PermittedBy::Mode),
                named => add(named.who(&group), PermittedBy::Acl),
            }
        }
    } else {
        if stat.st_mode & 0o002 != 0 {
            add(Who::Everyone, PermittedBy::Mode);
        }
        if stat.st_mode & 0o020 != 0 {
            add(group.clone(), PermittedBy::Mode);
        }
        // A file system has lists of one kind.
        if list == Attribute::Unsupported
            && let Attribute::Value(list) = attribute(file, c"system.nfs4_acl")?
        {
            for subject in nfs4_writers(&list).ok_or_else(malformed)? {
                add(subject.who(&group), PermittedBy::Nfs4Acl);
            }
        }
    }
    if FileType::from_raw_mode(stat.st_mode).is_dir()
        && let Attribute::Value(list) = attribute(file, c"system.posix_acl_default")?
    {
        // New files belong to the group of who makes them, or else to that of the directory.
        let gives_group = stat.st_mode & 0o2000 != 0;
        let subjects = posix_writers(&list).ok_or_else(malformed)?;
        for subject in subjects.into_iter().filter(|s| gives_group || *s != Subject::OwningGroup) {
            add(subject.who(&group), PermittedBy::DefaultAcl);
        }
    }
    Ok(writers)
}

impl Subject {
    fn who(self, owning: &Who) -> Who {
        match self {
            Subject::OwningGroup => owning.clone(),
            Subject::Everyone => Who::Everyone,
            Subject::User(uid) => Who::User(uid),
            Subject::Group(gid) => Who::Group(gid),
            Subject::Principal(name) => Who::Principal(name),
        }
    }
}

/// The most that the kernel lets an extended attribute hold.
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

#[derive(PartialEq)]
enum Attribute {
    Value(Vec<u8>),
    None,
    Unsupported,
}

fn attribute(file: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<Attribute> {
    // `fgetxattr` takes no descriptor of `O_PATH`; the link in /proc leads to the same file.
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Most files have none, and need no room for it.
    match getxattr_query(&*link, name) {
        Err(Errno::NODATA) => return Ok(Attribute::None),
        Err(Errno::OPNOTSUPP) => return Ok(Attribute::Unsupported),
        // It is not the file that is missing: that is open.
        Err(Errno::NOENT) => return Err(io::Error::other("/proc is not mounted")),
        size => size?,
    };
    let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
    let size = match getxattr(&*link, name, value.as_mut_slice()) {
        // It was taken away meanwhile.
        Err(Errno::NODATA) => return Ok(Attribute::None),
        size => size?,
    };
    value.truncate(size);
    Ok(Attribute::Value(value))
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its access control list is malformed")
}

impl fmt::Display for Who {
    /// Writes "user 65534", "group 100", "everyone".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::User(uid) => write!(f, "user {uid}"),
            Who::Group(gid) => write!(f, "group {gid}"),
            Who::Everyone => f.write_str("everyone"),
            Who::Principal(name) => write!(f, "{name:?}"),
        }
    }
}

/// More than the file of all users has.
const MAX_DATABASE_BYTES: u64 = 4 << 20;

impl Who {
    /// Returns who it is for messages, by name and number: "the user nobody (uid 65534)".
    pub fn named(&self) -> String {
        match (self.name(), self) {
            (Some(name), Who::User(uid)) => format!("the user {name} (uid {uid})"),
            (Some(name), Who::Group(gid)) => format!("the group {name} (gid {gid})"),
            _ => self.to_string(),
        }
    }

    /// Returns their name in `/etc/passwd` or `/etc/group`, for messages.
    pub fn name(&self) -> Option<String> {
        let (path, id) = match self {
            Who::User(uid) => ("/etc/passwd", uid),
            Who::Group(gid) => ("/etc/group", gid),
            Who::Everyone | Who::Principal(_) => return None,
        };
        let text = read_bounded(Path::new(path), MAX_DATABASE_BYTES).ok()?;
        String::from_utf8_lossy(&text).lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            (fields.nth(1)?.parse() == Ok(*id)).then(|| name.to_owned())
        })
    }
}
