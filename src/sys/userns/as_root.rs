//! Work with the access of root of a user namespace.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_thread_groups};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::sys::privilege::{exit_at_once, use_root};
use crate::sys::spawn::memory_file;

/// Why work failed, as it is told to another process.
#[derive(Serialize, Deserialize)]
struct Failure {
    number: Option<i32>,
    text: String,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure { number: error.raw_os_error(), text: error.to_string() }
    }
}

impl From<Failure> for io::Error {
    fn from(Failure { number, text }: Failure) -> Self {
        number.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error)
    }
}

/// Returns what `work` returns, which a copy of this process does as root of a user namespace: with files it
/// can do what root of a container there can do, and no more. The copy ends with the calling thread.
///
/// # Errors
///
/// Fails if the namespace cannot be entered, or if the copy is killed. Errors of `work` keep their number or,
/// without one, their text.
pub fn as_root_of<T: Serialize + DeserializeOwned>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let mut answer = File::from(memory_file("answer", b"")?);
    let parent = getpid();
    let Some(child) = fork()? else {
        let done =
            catch_unwind(AssertUnwindSafe(|| enter(namespace, parent).and_then(|()| work())));
        let Ok(done) = done else { exit_at_once(1) };
        let text = serde_json::to_vec(&done.map_err(Failure::from));
        let written = text.map_err(io::Error::from).and_then(|text| answer.write_all(&text));
        exit_at_once(i32::from(written.is_err()))
    };
    // Whoever else collects it, it has ended.
    while matches!(waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
    answer.rewind()?;
    let done: Result<T, Failure> = serde_json::from_reader(&answer)
        .map_err(|_| io::Error::other("the process that should do it has ended"))?;
    Ok(done?)
}

/// Becomes root of a user namespace, which ends with its parent.
fn enter(namespace: BorrowedFd<'_>, parent: Pid) -> io::Result<()> {
    set_thread_groups(&[])?;
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::User))?;
    use_root()?;
    // After the ids, whose change takes it away.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Makes a copy of this process, with the calling thread alone. Returns its number in the process, and nothing
/// in the copy.
#[expect(unsafe_code, reason = "there is no safe way to make a process that runs no program")]
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the C library's call leaves its allocator usable in the copy, whatever other threads did, and the
    // copy takes no lock of this program.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt as _, chown};

    use super::super::PrivateIds;
    use super::*;

    #[test]
    fn work_has_the_access_of_root_of_the_namespace_and_no_more() {
        if !rustix::process::geteuid().is_root() {
            // Nobody else can make one with ids of others.
            return;
        }
        let ids = PrivateIds::of_job(7).unwrap();
        let namespace = ids.namespace().unwrap();
        let in_it = |work: &dyn Fn() -> io::Result<u32>| as_root_of(namespace.as_fd(), work);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let denied = in_it(&|| fs::write(&path, "").map(|()| 0)).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        let parameter = "/proc/sys/kernel/core_pattern";
        let denied = in_it(&|| File::options().write(true).open(parameter).map(|_| 0)).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
        chown(dir.path(), Some(ids.first), Some(ids.first)).unwrap();
        let made = in_it(&|| {
            fs::write(&path, "")?;
            chown(&path, Some(1001), Some(0))?;
            Ok(path.metadata()?.uid())
        });
        assert_eq!(made.unwrap(), 1001);
        assert_eq!(path.metadata().unwrap().uid(), ids.first + 1001);
        assert_eq!(in_it(&|| Err(io::Error::other("why"))).unwrap_err().to_string(), "why");
        assert!(in_it(&|| panic!("it is not taken for an answer")).is_err());
        assert!(in_it(&|| exit_at_once(0)).is_err());
    }
}
