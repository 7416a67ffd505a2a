//! Children that end with us, children that outlive us, and what they get from us.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, FdFlags, dup2, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal, setsid, wait,
};

/// Has the kernel kill a child as soon as the thread that starts it ends, in whatever way: what a
/// killed program was about to make must not appear after somebody cleaned up.
pub fn die_with_us(command: &mut Command) {
    let us = getpid();
    // Unlike a number, it means us in a namespace of the child's own too.
    let parent = pidfd_open(us, PidfdFlags::empty());
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // Killed before that, we are not waited for.
        let is_gone = match &parent {
            Ok(parent) => {
                poll(&mut [PollFd::new(parent, PollFlags::IN)], Some(&Timespec::default()))? != 0
            }
            Err(_) => getppid().is_some_and(|parent| parent != us),
        };
        if is_gone { Err(Errno::SRCH.into()) } else { Ok(()) }
    };
    #[expect(unsafe_code, reason = "there is no other way to set this for a child")]
    // SAFETY: between fork and exec only system calls are made; they allocate nothing and take no
    // lock.
    unsafe {
        command.pre_exec(in_child);
    }
}

/// Has the kernel kill this process as soon as the thread that started it ends, in whatever way, as
/// [`die_with_us`] does for a child that another program starts. `parent` is the number of that
/// program's process, as this process sees it.
///
/// # Errors
///
/// Fails with `ESRCH` if that process has ended already, or did not start this one.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If it ended before that, somebody else is the parent by now.
    let is_parent = getppid().is_some_and(|found| u32::try_from(found.as_raw_pid()) == Ok(parent));
    if is_parent { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Detaches this process from whoever started it: it lives on when they end, in a session of its
/// own, and gets the orphans of its children.
pub fn detach() -> io::Result<()> {
    // Fails for the leader of a process group, which is in a session that it may as well stay in.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Stays when the parent ends, from now on.
pub fn outlive_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(None)?)
}

/// Collects all children that have ended, those that were adopted too, and forgets how they did.
pub fn collect_ended() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Leaves a descriptor open in a child, and in no other that is started meanwhile.
pub fn pass_descriptor(command: &mut Command, descriptor: OwnedFd) {
    #[expect(unsafe_code, reason = "there is no other way to set this for a child")]
    // SAFETY: between fork and exec only a system call is made; it allocates nothing and takes no
    // lock. The descriptor is open as long as the command, which owns it.
    unsafe {
        command.pre_exec(move || Ok(fcntl_setfd(&descriptor, FdFlags::empty())?));
    }
}

/// Leaves a descriptor open in a child under this number, in place of what it would have there. To be
/// called last of all that a command passes on.
pub fn pass_descriptor_as(
    command: &mut Command,
    descriptor: OwnedFd,
    number: RawFd,
) -> io::Result<()> {
    // The number is taken before `Command` makes the pipe by which a child reports that it cannot execute the
    // program: the pipe would have it, and be overwritten in the child.
    let placeholder = fcntl_dupfd_cloexec(&descriptor, number)?;
    let in_child = move || {
        let _kept = &placeholder;
        if descriptor.as_raw_fd() == number {
            return Ok(fcntl_setfd(&descriptor, FdFlags::empty())?);
        }
        #[expect(unsafe_code, reason = "those that were inherited belong to no value")]
        // SAFETY: the child executes a program next, and uses none but this one under the number.
        let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
        Ok(dup2(&descriptor, &mut target)?)
    };
    #[expect(unsafe_code, reason = "there is no other way to set this for a child")]
    // SAFETY: between fork and exec only system calls are made; they allocate nothing and take no
    // lock. The descriptors are open as long as the command, which owns them.
    unsafe {
        command.pre_exec(in_child);
    }
    Ok(())
}

/// Has a child enter a cgroup before it executes its program, given the file of the cgroup that lists its
/// processes. A child that may not stays where it is.
pub fn enter_cgroup(command: &mut Command, procs: OwnedFd) {
    let in_child = move || {
        let _ = rustix::io::write(&procs, b"0");
        Ok(())
    };
    #[expect(unsafe_code, reason = "there is no other way to do this in a child")]
    // SAFETY: between fork and exec only a system call is made; it allocates nothing and takes no
    // lock. The descriptor is open as long as the command, which owns it.
    unsafe {
        command.pre_exec(in_child);
    }
}

/// Takes a descriptor over that this process was started with, by its number. To be called once for
/// each, before anything else is opened.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::from(Errno::BADF));
    }
    #[expect(unsafe_code, reason = "those that were inherited belong to no value")]
    // SAFETY: it is used for this one call, which says whether there is such a descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    #[expect(unsafe_code, reason = "those that were inherited belong to no value")]
    // SAFETY: it is open, and whoever started this process passed it on for this value alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Keeps what this process was started with, besides the standard streams, from its children.
pub fn keep_descriptors() -> io::Result<()> {
    let descriptors: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2)
        .collect();
    for descriptor in descriptors {
        #[expect(unsafe_code, reason = "those that were inherited belong to no value")]
        // SAFETY: it is used for this one call, which does no harm to whoever else has it; one that
        // was closed meanwhile, as that of the directory was, is an error that changes nothing.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
    Ok(())
}

/// Returns an input that is at its end.
///
/// It is not the host's `/dev/null`: crun makes what a process has for standard streams belong to the
/// process's user, and that is one file for all.
pub fn empty_input() -> io::Result<OwnedFd> {
    let (input, _) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(input)
}

/// Returns a file in memory with this content, read from its beginning; it has no name.
pub fn memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}
