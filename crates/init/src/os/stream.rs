//! Calls for forwarding bytes.

#![expect(unsafe_code, reason = "the standard library has none of these calls")]

use std::ffi::{c_int, c_ulong};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::null_mut;

use super::ffi::*;

/// Makes reads and writes of a descriptor non-blocking.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the flags are numbers.
    unsafe {
        let flags = super::checked(fcntl(fd.as_raw_fd(), F_GETFL))?;
        super::checked(fcntl(fd.as_raw_fd(), F_SETFL, flags | O_NONBLOCK)).map(drop)
    }
}

/// Keeps other processes of the user from inspecting this one.
pub fn hide_process() {
    // SAFETY: has no pointers.
    unsafe { prctl(PR_SET_DUMPABLE, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) };
}

/// Sends bytes with descriptors, without blocking; returns the number of bytes sent. The
/// descriptors go with the first byte.
pub fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut iov = Iovec { base: bytes.as_ptr().cast_mut().cast(), length: bytes.len() };
    let mut control = ControlMessage {
        length: 0,
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        descriptors: [-1; DESCRIPTORS_AT_ONCE],
    };
    for (place, fd) in control.descriptors.iter_mut().zip(descriptors) {
        *place = fd.as_raw_fd();
    }
    let count = descriptors.len().min(DESCRIPTORS_AT_ONCE);
    let header = size_of::<ControlMessage>() - size_of_val(&control.descriptors);
    control.length = header + count * size_of::<c_int>();
    let message = Msghdr {
        name: null_mut(),
        name_length: 0,
        iov: &raw mut iov,
        iov_length: 1,
        control: if count == 0 { null_mut() } else { (&raw mut control).cast() },
        // Messages are padded to their alignment.
        control_length: if count == 0 {
            0
        } else {
            control.length.next_multiple_of(size_of::<usize>())
        },
        flags: 0,
    };
    let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    // SAFETY: the message names areas that are as large as it says, and nothing is written to them.
    let sent = unsafe { sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
