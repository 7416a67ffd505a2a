//! Declarations of the C library and the kernel, by their names and numbers. Unless noted, they are
//! the same for glibc and musl on x86_64, aarch64 and riscv64.

#![expect(unsafe_code, reason = "functions of another language")]

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use super::{PollFd, SignalSet};

pub const MADV_DONTNEED: c_int = 4;
/// Page size, or a fraction of it.
pub const PAGE_BYTES: usize = 4096;
pub const SIG_BLOCK: c_int = 0;
pub const SIG_SETMASK: c_int = 2;
pub const WNOHANG: c_int = 1;
pub const O_NONBLOCK: c_int = 0o4000;
pub const O_NOCTTY: c_int = 0o400;
pub const O_RDWR: c_int = 2;
pub const O_CLOEXEC: c_int = 0o2_000_000;
pub const FD_CLOEXEC: c_int = 1;
pub const F_SETFD: c_int = 2;
pub const F_GETFL: c_int = 3;
pub const F_SETFL: c_int = 4;
pub const SOL_SOCKET: c_int = 1;
pub const SO_ACCEPTCONN: c_int = 30;
pub const SCM_RIGHTS: c_int = 1;
pub const MSG_CTRUNC: c_int = 8;
pub const MSG_DONTWAIT: c_int = 0x40;
pub const MSG_NOSIGNAL: c_int = 0x4000;
pub const MSG_CMSG_CLOEXEC: c_int = 0x4000_0000;
pub const RLIMIT_NOFILE: c_uint = 7;
pub const PR_SET_DUMPABLE: c_int = 4;
pub const PR_SET_CHILD_SUBREAPER: c_int = 36;
pub const PR_CAP_AMBIENT: c_int = 47;
pub const PR_CAP_AMBIENT_LOWER: c_ulong = 3;
pub const CAP_KILL: u32 = 5;
pub const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
pub const TIOCSCTTY: c_ulong = 0x540e;
pub const TIOCSWINSZ: c_ulong = 0x5414;
pub const TIOCSPTLCK: c_ulong = 0x4004_5431;
pub const SIGPIPE: i32 = 13;
pub const LAST_SIGNAL: i32 = 64;
pub const TIOCGPTPEER: c_ulong = 0x5441;
pub const NS_GET_OWNER_UID: c_ulong = 0xb704;
pub const CLOSE_RANGE_CLOEXEC: c_uint = 4;
/// Number of a system call. From 424 on, the numbers are the same on all architectures.
pub const SYS_PIDFD_SEND_SIGNAL: c_long = 424;
pub const SYS_CLOSE_RANGE: c_long = 436;
pub const SYS_CLONE3: c_long = 435;
pub const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
#[cfg(target_arch = "x86_64")]
pub const SYS_GETDENTS64: c_long = 217;
#[cfg(not(target_arch = "x86_64"))]
pub const SYS_GETDENTS64: c_long = 61;
#[cfg(target_arch = "x86_64")]
pub const SYS_CAPGET_CAPSET: (c_long, c_long) = (125, 126);
#[cfg(target_arch = "x86_64")]
pub const SYS_RT_SIGACTION: c_long = 13;
#[cfg(not(target_arch = "x86_64"))]
pub const SYS_CAPGET_CAPSET: (c_long, c_long) = (90, 91);
#[cfg(not(target_arch = "x86_64"))]
pub const SYS_RT_SIGACTION: c_long = 134;

/// The kernel's `struct clone_args`.
#[repr(C)]
#[derive(Default)]
pub(super) struct CloneArguments {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_bytes: u64,
    pub tls: u64,
    pub set_tid: u64,
    pub set_tid_count: u64,
    pub cgroup: u64,
}

#[repr(C)]
pub(super) struct Iovec {
    pub base: *mut c_void,
    pub length: usize,
}

#[repr(C)]
pub(super) struct Msghdr {
    pub name: *mut c_void,
    pub name_length: c_uint,
    pub iov: *mut Iovec,
    pub iov_length: usize,
    pub control: *mut c_void,
    pub control_length: usize,
    pub flags: c_int,
}

/// `struct statvfs` on 64-bit machines.
#[repr(C)]
pub(super) struct Statvfs {
    pub block_bytes: [u64; 2],
    pub blocks: u64,
    pub free: u64,
    /// Blocks that users other than root can use.
    pub available: u64,
    pub rest: [u64; 11],
}

pub const DESCRIPTORS_AT_ONCE: usize = 8;

#[repr(C, align(8))]
pub(super) struct ControlMessage {
    pub length: usize,
    pub level: c_int,
    pub kind: c_int,
    pub descriptors: [c_int; DESCRIPTORS_AT_ONCE],
}

#[repr(C)]
pub(super) struct Timespec {
    pub seconds: i64,
    pub nanoseconds: c_long,
}

unsafe extern "C" {
    /// Start of the program in memory, defined by the linker.
    pub static __executable_start: u8;
    /// End of the executable part of the program in memory, defined by the linker.
    pub static etext: u8;
    pub static environ: *const *const c_char;
    pub(super) fn _exit(code: c_int) -> !;
    pub(super) fn accept4(
        fd: c_int,
        address: *mut c_void,
        length: *mut c_uint,
        flags: c_int,
    ) -> c_int;
    pub(super) fn chdir(path: *const c_char) -> c_int;
    pub(super) fn dup2(old: c_int, new: c_int) -> c_int;
    pub(super) fn execve(
        path: *const c_char,
        args: *const *const c_char,
        env: *const *const c_char,
    ) -> c_int;
    pub(super) fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    pub(super) fn fork() -> c_int;
    pub(super) fn madvise(begin: *mut c_void, length: usize, advice: c_int) -> c_int;
    pub(super) fn getpid() -> c_int;
    pub(super) fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        length: *mut c_uint,
    ) -> c_int;
    pub(super) fn getrlimit(resource: c_uint, limit: *mut [u64; 2]) -> c_int;
    pub(super) fn getuid() -> c_uint;
    pub(super) fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    #[link_name = "kill"]
    pub(super) fn c_kill(pid: c_int, signal: c_int) -> c_int;
    pub(super) fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    pub(super) fn openat(dir: c_int, path: *const c_char, flags: c_int, ...) -> c_int;
    pub(super) fn pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    #[link_name = "poll"]
    pub(super) fn c_poll(entries: *mut PollFd, count: c_ulong, milliseconds: c_int) -> c_int;
    pub(super) fn prctl(operation: c_int, ...) -> c_int;
    pub(super) fn recvmsg(fd: c_int, message: *mut Msghdr, flags: c_int) -> isize;
    pub(super) fn send(fd: c_int, bytes: *const c_void, length: usize, flags: c_int) -> isize;
    pub(super) fn sendmsg(fd: c_int, message: *const Msghdr, flags: c_int) -> isize;
    pub(super) fn setgid(gid: c_uint) -> c_int;
    pub(super) fn setgroups(count: usize, groups: *const c_uint) -> c_int;
    pub(super) fn setpgid(pid: c_int, group: c_int) -> c_int;
    pub(super) fn setrlimit(resource: c_uint, limit: *const [u64; 2]) -> c_int;
    pub(super) fn setsid() -> c_int;
    pub(super) fn setuid(uid: c_uint) -> c_int;
    pub(super) fn signalfd(fd: c_int, set: *const SignalSet, flags: c_int) -> c_int;
    pub(super) fn sigprocmask(how: c_int, set: *const SignalSet, old: *mut SignalSet) -> c_int;
    pub(super) fn sigtimedwait(
        set: *const SignalSet,
        info: *mut c_void,
        timeout: *const Timespec,
    ) -> c_int;
    pub(super) fn statvfs(path: *const c_char, status: *mut Statvfs) -> c_int;
    pub(super) fn syscall(number: c_long, ...) -> c_long;
    pub(super) fn umask(mask: c_uint) -> c_uint;
    pub(super) fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
}
