//! Orphans of this process's descendants, which become its own children: so that they are found, and
//! collected once they have ended.

use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{
    Pid, WaitId, WaitIdOptions, WaitOptions, child_subreaper, getpid, set_child_subreaper, waitid,
    waitpid,
};

use super::processes::Process;

/// Children that somebody here waits for, wherever they have gone.
static AWAITED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// A child that somebody waits for, until this is dropped.
#[derive(Debug)]
pub struct Awaited(u32);

impl Awaited {
    /// Keeps [`collect`] from taking how a child ended from who waits for it.
    pub fn new(child: u32) -> Self {
        AWAITED.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        Awaited(child)
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut awaited = AWAITED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = awaited.iter().position(|child| *child == self.0) {
            awaited.swap_remove(index);
        }
    }
}

/// Makes this process the parent of its descendants' orphans, which it then has to [`collect`].
pub fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Returns whether orphans of this process's descendants become its children.
pub fn are_adopted() -> bool {
    getpid().as_raw_pid() == 1 || child_subreaper().is_ok_and(|set| set.is_some())
}

/// Returns whether this process has no children, and if orphans are adopted thus no descendants.
pub fn has_no_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// Returns whether a child was adopted: who is started here is in this process's session, and in its group
/// or one of its own.
pub fn is_adopted(child: &Process, own: &Process) -> bool {
    child.parent == own.pid
        && (child.session != own.session || ![child.pid, own.group].contains(&child.group))
}

/// Collects adopted children that have ended.
pub fn collect() {
    let Some(own) = Process::of(std::process::id()) else { return };
    let children = Process::children_of(own.pid).into_iter().filter_map(Process::of);
    for child in children {
        if child.is_zombie && is_adopted(&child, &own) {
            forget(child.pid);
        }
    }
}

/// Collects a child if it has ended and nobody waits for it.
pub fn forget(child: u32) {
    let awaited = AWAITED.lock().unwrap_or_else(PoisonError::into_inner);
    if !awaited.contains(&child)
        && let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw)
    {
        // It is none of ours, or was collected meanwhile.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_started_here_is_told_from_who_is_adopted() {
        let process = |pid, parent, group, session| Process {
            pid,
            parent,
            group,
            session,
            start: 0,
            is_zombie: false,
        };
        let own = process(10, 1, 9, 8);
        for (child, expected) in [
            (process(11, 10, 9, 8), false),
            (process(11, 10, 11, 8), false),
            (process(12, 10, 11, 8), true),
            (process(12, 10, 12, 12), true),
            (process(12, 11, 12, 12), false),
        ] {
            assert_eq!(is_adopted(&child, &own), expected, "{child:?}");
        }
    }

    #[test]
    fn a_child_that_is_awaited_is_left_to_who_waits() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let awaited = Awaited::new(child.id());
        let ended = || Process::of(child.id()).is_some_and(|process| process.is_zombie);
        while !ended() {
            std::thread::yield_now();
        }
        forget(child.id());
        assert!(ended());
        drop(awaited);
        forget(child.id());
        assert!(!ended());
        assert!(child.wait().is_err());
    }
}
