//! Programs that want to leave groups where nobody may.
//!
//! A user without subordinate ids makes user namespaces in which the kernel lets no process change its
//! supplementary groups. buildah does it before each step of a Dockerfile, and gives up if it cannot.

use rustix::io::Errno;

/// The machine as filters of system calls see it; none where calls are not known here.
const MACHINE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xC000_003E)
} else if cfg!(target_arch = "aarch64") {
    Some(0xC000_00B7)
} else {
    None
};

/// Where the number of the call and the machine are in what a filter looks at.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// Instructions of a filter: load a word, compare it, end with a verdict.
const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const END: u16 = 0x06;

/// How many there are.
const COUNT: u16 = 6;

/// Has this process and all that it starts be told that a change of groups was done, which is not.
///
/// Between fork and exec this may be called: it makes one system call, and takes no memory.
pub(super) fn pretend_to_change() -> Result<(), Errno> {
    let Some(machine) = MACHINE else { return Ok(()) };
    let Ok(change) = u32::try_from(libc::SYS_setgroups) else { return Ok(()) };
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps: [_; COUNT as usize] = [
        step(LOAD, 0, 0, ARCHITECTURE),
        step(EQUAL, 0, 3, machine),
        step(LOAD, 0, 0, NUMBER),
        step(EQUAL, 0, 1, change),
        // With the number of no error.
        step(END, 0, 0, libc::SECCOMP_RET_ERRNO),
        step(END, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: COUNT, filter: steps.as_mut_ptr() };
    #[expect(unsafe_code, reason = "there is no safe way to filter system calls")]
    // SAFETY: the kernel copies the filter, which lives until the call returns.
    let done =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    if done == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}
