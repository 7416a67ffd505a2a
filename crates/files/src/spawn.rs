//! Starting child processes: parent death signal, sessions, inherited descriptors and limits.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, FdFlags, dup2, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{
    PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getpid, getppid, getrlimit, pidfd_open,
    set_child_subreaper, set_parent_process_death_signal, setrlimit, setsid, wait,
};

/// Limit of open files from before [`raise_file_limit`].
static INHERITED_FILE_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit of open files of this process to the hard limit. Programs that expect the usual limit,
/// such as those that call `select`, have to be started with [`restore_file_limit`].
///
/// # Errors
///
/// Fails if the hard limit is above what the kernel permits now (`fs.nr_open`); the limit is unchanged then.
pub fn raise_file_limit() -> io::Result<()> {
    let inherited = *INHERITED_FILE_LIMIT.get_or_init(|| getrlimit(Resource::Nofile));
    let raised = Rlimit { current: inherited.maximum, maximum: inherited.maximum };
    Ok(setrlimit(Resource::Nofile, raised)?)
}

/// Gives a child the limit of open files from before [`raise_file_limit`].
pub fn restore_file_limit(command: &mut Command) {
    let Some(inherited) = INHERITED_FILE_LIMIT.get().copied() else { return };
    #[expect(unsafe_code, reason = "there is no other way to set this for a child")]
    // SAFETY: between fork and exec only a system call is made; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || Ok(setrlimit(Resource::Nofile, inherited)?));
    }
}

/// Limits the size of files that a child can write.
pub(crate) fn limit_file_size(command: &mut Command, bytes: u64) {
    let most = getrlimit(Resource::Fsize).maximum.map_or(bytes, |most| most.min(bytes));
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    #[expect(unsafe_code, reason = "there is no other way to set this for a child")]
    // SAFETY: between fork and exec only a system call is made; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || Ok(setrlimit(Resource::Fsize, limit)?));
    }
}

/// Makes the kernel kill a child as soon as the thread that starts it ends for any reason
/// (`PR_SET_PDEATHSIG`): the child of a killed program must not create files after the next one cleaned up.
pub fn die_with_us(command: &mut Command) {
    let us = getpid();
    // Unlike a PID, a pidfd is valid in the child's own PID namespace too.
    let parent = pidfd_open(us, PidfdFlags::empty());
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent ended before the call, the signal is never sent.
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

/// Makes the kernel kill this process as soon as the thread that started it ends for any reason: the
/// counterpart of [`die_with_us`] for the child to call. `parent` is the PID of the parent process, as
/// this process sees it.
///
/// # Errors
///
/// Fails with `ESRCH` if the parent has already ended, or is not the parent of this process.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the parent ended before the call, this process has another parent by now.
    let is_parent = getppid().is_some_and(|found| u32::try_from(found.as_raw_pid()) == Ok(parent));
    if is_parent { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Detaches this process from its parent: it lives on when the parent ends, in a session of its own,
/// and becomes the subreaper of its descendants.
pub fn detach() -> io::Result<()> {
    // Fails for the leader of a process group, which may as well stay in its session.
    let _ = setsid();
    set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Clears the parent death signal: the process may outlive its parent.
pub fn outlive_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(None)?)
}

/// Reaps all children that have ended, including adopted orphans, and discards their exit statuses.
pub fn collect_ended() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Passes a descriptor to a child, and to no other child that is started meanwhile.
pub fn pass_descriptor(command: &mut Command, descriptor: OwnedFd) {
    #[expect(unsafe_code, reason = "there is no other way to set this for a child")]
    // SAFETY: between fork and exec only a system call is made; it allocates nothing and takes no
    // lock. The descriptor is open as long as the command, which owns it.
    unsafe {
        command.pre_exec(move || Ok(fcntl_setfd(&descriptor, FdFlags::empty())?));
    }
}

/// Passes a descriptor to a child under this number, in place of any other descriptor with that number.
/// To be called after all other calls that pass descriptors to the command.
pub fn pass_descriptor_as(
    command: &mut Command,
    descriptor: OwnedFd,
    number: RawFd,
) -> io::Result<()> {
    // Reserve the number before `Command` creates the pipe by which a child reports that it cannot execute the
    // program: the pipe would get the number, and be overwritten in the child.
    let placeholder = fcntl_dupfd_cloexec(&descriptor, number)?;
    let in_child = move || {
        let _kept = &placeholder;
        if descriptor.as_raw_fd() == number {
            return Ok(fcntl_setfd(&descriptor, FdFlags::empty())?);
        }
        #[expect(unsafe_code, reason = "an inherited descriptor has no owner in Rust yet")]
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

/// Takes ownership of an inherited descriptor, given its number. To be called once for each descriptor,
/// before any other file is opened.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::from(Errno::BADF));
    }
    #[expect(unsafe_code, reason = "an inherited descriptor has no owner in Rust yet")]
    // SAFETY: the number is used for one call only, `fcntl`, which fails if the descriptor is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    #[expect(unsafe_code, reason = "an inherited descriptor has no owner in Rust yet")]
    // SAFETY: it is open, and the parent process passed it for this value only.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Sets `FD_CLOEXEC` on all inherited descriptors except the standard streams, so that children do not get them.
pub fn close_inherited_on_exec() -> io::Result<()> {
    let descriptors: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2)
        .collect();
    for descriptor in descriptors {
        #[expect(unsafe_code, reason = "an inherited descriptor has no owner in Rust yet")]
        // SAFETY: it is used for this one call, which does no harm to other owners of the descriptor; if it
        // was closed meanwhile, as that of the directory was, the call fails and changes nothing.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
    Ok(())
}

/// Returns a memfd with this content, positioned at its start.
pub fn memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    write_memory(memfd_create(name, MemfdFlags::CLOEXEC)?, content)
}

/// Returns a memfd with an executable, positioned at its start. It may be executed even if
/// `vm.memfd_noexec` is 1.
pub fn memory_program(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let create = |flags| memfd_create(name, MemfdFlags::CLOEXEC | flags);
    // Linux 6.3 and later reject execution without the flag if `vm.memfd_noexec` is 1; older kernels do not know it.
    let created = match create(MemfdFlags::EXEC) {
        Err(Errno::INVAL) => create(MemfdFlags::empty()),
        created => created,
    };
    write_memory(created?, content)
}

fn write_memory(file: OwnedFd, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(file);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}
