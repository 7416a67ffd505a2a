//! The order in which several pipes are written to.
//!
//! A pipe keeps its own bytes in order, but two pipes together do not: after a burst, both are readable,
//! and nothing in them says which line came first. Two old abilities of the kernel do:
//!
//! - `F_SETSIG`, see fcntl(2): each write to a pipe queues a real-time signal with the descriptor's number
//!   for one thread, here one that blocks it and reads the queue with a signalfd. Signals are never
//!   merged, as the notifications of inotify and epoll are.
//! - `O_DIRECT`, see pipe(2): each read gives what one write wrote, a page at most. So a signal stands for
//!   one read, or for several if it wrote more.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// Size of a pipe. Each write takes a page of it, however small it is; of 64 KiB, the usual size, 16 lines
/// would fill it. A user has 64 MiB for pipes that are larger than usual.
pub const PIPE_BYTES: usize = 256 << 10;

// See linux/fcntl.h; libc lacks them.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

/// Pipes with reads that are writes, and the queue of their writes.
#[derive(Debug)]
pub struct Arrivals {
    queue: OwnedFd,
    /// Signals are for the thread that made this.
    _thread: PhantomData<*const ()>,
}

impl Arrivals {
    /// Returns an empty queue. Its two signals stay blocked in this thread, and in the threads and
    /// processes that it starts: see [`unblock`].
    pub fn new() -> io::Result<Self> {
        let signals = signals();
        change_mask(libc::SIG_BLOCK, &signals)?;
        #[expect(unsafe_code, reason = "rustix has no signalfd")]
        // SAFETY: the set is initialized, and a new descriptor belongs to nobody else.
        let queue = unsafe {
            let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
            OwnedFd::from_raw_fd(valid(libc::signalfd(-1, &raw const signals, flags))?)
        };
        Ok(Arrivals { queue, _thread: PhantomData })
    }

    /// Returns the ends for reading, which never blocks, and for writing of a new pipe. Its writes are in
    /// the queue under the number of the former.
    pub fn pipe(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::DIRECT)?;
        // Of the usual size, it works as well.
        let _ = fcntl_setpipe_size(&reader, PIPE_BYTES);
        let owner =
            Owner { kind: F_OWNER_TID, pid: rustix::thread::gettid().as_raw_nonzero().get() };
        let fd = reader.as_fd().as_raw_fd();
        #[expect(unsafe_code, reason = "rustix does not have these operations")]
        // SAFETY: the descriptor is open, and the owner is read before this returns.
        unsafe {
            valid(libc::fcntl(fd, F_SETOWN_EX, &raw const owner))?;
            valid(libc::fcntl(fd, F_SETSIG, signal()))?;
            valid(libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK))?;
        }
        Ok((reader, writer))
    }

    /// Appends to `writes` the descriptor of each write since the last call. Returns whether there were
    /// any. At its end, a pipe has one more.
    pub fn take(&self, writes: &mut Vec<RawFd>) -> bool {
        let before = writes.len();
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        let mut buffer = [0; 32 * SIZE];
        while let Ok(length) = rustix::io::read(&self.queue, &mut buffer[..]) {
            for entry in buffer[..length].chunks_exact(SIZE) {
                let at = |offset: usize| {
                    i32::from_ne_bytes(entry[offset..offset + 4].try_into().expect("four bytes"))
                };
                // When the user's queue is full, there is only SIGIO, which says nothing.
                if at(std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo)) == signal() {
                    writes.push(at(std::mem::offset_of!(libc::signalfd_siginfo, ssi_fd)));
                }
            }
        }
        writes.len() > before
    }
}

/// Undoes for this thread what the one that started it did with [`Arrivals::new`]: the programs that it
/// starts inherit what is blocked.
pub fn unblock() {
    change_mask(libc::SIG_UNBLOCK, &signals()).expect("the set and the change are valid");
}

/// Returns the signal for writes: one that nobody uses. Debuggers and C libraries take the first ones.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 5
}

/// Returns the signal for writes, and the one that is sent instead if the queue is full.
fn signals() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    #[expect(unsafe_code, reason = "rustix has no sets of signals")]
    // SAFETY: the first call initializes the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGIO);
        set.assume_init()
    }
}

fn change_mask(how: libc::c_int, signals: &libc::sigset_t) -> io::Result<()> {
    #[expect(unsafe_code, reason = "rustix has no mask of signals")]
    // SAFETY: the set is initialized, and the old mask is not asked for.
    let error = unsafe { libc::pthread_sigmask(how, signals, std::ptr::null_mut()) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

fn valid(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn each_write_is_in_the_queue_and_is_one_read() {
        let arrivals = Arrivals::new().unwrap();
        let (out, to_out) = arrivals.pipe().unwrap();
        let (err, to_err) = arrivals.pipe().unwrap();
        let mut writes = Vec::new();
        assert!(!arrivals.take(&mut writes));
        for (to, text) in [(&to_err, "1\n2\n"), (&to_err, "3"), (&to_out, "4"), (&to_err, "5")] {
            assert_eq!(rustix::io::write(to, text.as_bytes()).unwrap(), text.len());
        }
        assert!(arrivals.take(&mut writes));
        let (out_fd, err_fd) = (out.as_raw_fd(), err.as_raw_fd());
        assert_eq!(writes, [err_fd, err_fd, out_fd, err_fd]);
        assert!(!arrivals.take(&mut writes));
        let mut buffer = [0; 4096];
        for expected in ["1\n2\n", "3", "5"] {
            let length = rustix::io::read(&err, &mut buffer[..]).unwrap();
            assert_eq!(&buffer[..length], expected.as_bytes());
        }
    }

    #[test]
    fn a_program_has_no_signal_blocked() {
        let _arrivals = Arrivals::new().unwrap();
        let blocked = |status: &[u8]| {
            let status = String::from_utf8_lossy(status).into_owned();
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        let read = || Command::new("cat").arg("/proc/self/status").output();
        let ours = 1 << (signal() - 1) | 1 << (libc::SIGIO - 1);
        assert_eq!(blocked(&read().unwrap().stdout) & ours, ours);
        let other = std::thread::scope(|scope| {
            let work = || {
                unblock();
                read()
            };
            scope.spawn(work).join().unwrap()
        });
        assert_eq!(blocked(&other.unwrap().stdout) & ours, 0);
    }
}
