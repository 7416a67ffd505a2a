//! How a holder is found whose record cannot be read or believed: it locks a file, and the kernel says which
//! process does.
//!
//! Locks of fcntl(2) belong to a process. Nobody inherits them, nobody takes them in another's name, and
//! they go when the process ends. The file is in the user's run directory, which no container has.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::Privilege;
use super::cgroup;
use super::holder::Holder;
use super::ids::Ids;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::identity::Identity;
use crate::sys::removal::remove_tree;

/// How often it is asked who locks a file that others get hold of meanwhile.
const ATTEMPTS: usize = 10;

/// Makes the file that a new holder locks, in place of that of an earlier one.
pub fn make(path: &Path) -> Result<File, PathError> {
    remove_tree(path)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path).at("make", path)
}

/// Locks a file for this process, as long as it has the file open.
pub(super) fn lock(file: &File) -> Result<(), Errno> {
    fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)
}

impl Holder {
    /// Returns the holder that has locked a file; none if nobody has, or one who is no holder.
    pub fn of_lock(path: &Path) -> Option<Self> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let process = owner(&file)?;
        let proc = PathBuf::from(format!("/proc/{}", process.pid));
        let privilege = match Ids::of_namespace(&proc).ok()?? {
            Ids::SINGLE => Privilege::Single,
            ids => Privilege::Mapped(ids),
        };
        let cgroup = cgroup::of_first(&proc);
        let is_holder = is_first_of_namespace(&proc);
        // Asked last: until then it was no other's directory.
        (is_holder && process.is_running()).then_some(Holder { process, privilege, cgroup })
    }
}

/// Returns the process that has locked a file, if it is seen from here.
fn owner(file: &File) -> Option<Identity> {
    let asked = || {
        let lock = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok()??;
        u32::try_from(lock.pid?.as_raw_nonzero().get()).ok()
    };
    for _ in 0..ATTEMPTS {
        let process = Identity::of(asked()?);
        // It had the lock before and has it now, so it is that process and no later one with its number.
        if let Some(process) = process
            && asked()? == process.pid
        {
            return Some(process);
        }
    }
    None
}

/// Returns whether a process is the first one of a process namespace below that of this one.
fn is_first_of_namespace(proc: &Path) -> bool {
    let status = std::fs::read_to_string(proc.join("status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids: Vec<&str> = ids.unwrap_or_default().split_whitespace().collect();
    ids.len() > 1 && ids.last() == Some(&"1")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn who_locks_a_file_is_found_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(Holder::of_lock(&path), None);
        let file = make(&path).unwrap();
        assert_eq!(owner(&file), None);
        // Another process: its own locks nobody is told of.
        let script = "open(F, '+<', $ARGV[0]); $lock = pack('ssx4qqix4', F_WRLCK); \
                      fcntl(F, F_SETLK, $lock) or die $!; \
                      syswrite(STDOUT, 'held'); <STDIN>";
        let mut perl = Command::new("perl");
        perl.args(["-MFcntl", "-e", script]).arg(&path);
        let mut perl = perl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        perl.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
        assert_eq!(owner(&file), Identity::of(perl.id()));
        lock(&file).unwrap_err();
        assert_eq!(Holder::of_lock(&path), None, "it is first in no namespace");
        // Who keeps the old file is in nobody's way.
        let new = make(&path).unwrap();
        lock(&new).unwrap();
        drop(perl.stdin.take());
        perl.wait().unwrap();
        assert_eq!(owner(&file), None);
    }

    #[test]
    fn what_is_in_place_of_the_file_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(Holder::of_lock(&path), None);
        make(&path).unwrap();
        assert!(path.symlink_metadata().unwrap().is_file());
    }
}
