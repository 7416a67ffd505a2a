//! Whose a file is, for a process in a user namespace. The kernel shows it one number for all users that its
//! maps lack, root of the host among them. The process that entered for it stayed outside, and sees more.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{Stat, fstat};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};

use crate::sys::fs::correct_owners;

/// How the process outside is asked, and what the numbers for everybody else are.
struct Asked {
    socket: Mutex<OwnedFd>,
    overflow: (u32, u32),
}

static ASKED: OnceLock<Asked> = OnceLock::new();

/// The ids of user and group, and whether there are any: something went wrong otherwise.
const ANSWER_BYTES: usize = 9;

/// Has the process at the other end of a socket be asked from now on.
pub fn ask(socket: OwnedFd) {
    let overflow = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(65534)
    };
    let overflow = (overflow("overflowuid"), overflow("overflowgid"));
    // There is one door, which is passed once.
    let _ = ASKED.set(Asked { socket: Mutex::new(socket), overflow });
    correct_owners(correct);
}

/// Puts the owner and group that a file has outside in the place of numbers that stand for everybody who is
/// not known here.
fn correct(file: BorrowedFd<'_>, stat: &mut Stat) -> io::Result<()> {
    if let Some(asked) = ASKED.get()
        && (stat.st_uid == asked.overflow.0 || stat.st_gid == asked.overflow.1)
    {
        let (uid, gid) = asked.ask(file)?;
        if stat.st_uid == asked.overflow.0 {
            stat.st_uid = uid;
        }
        if stat.st_gid == asked.overflow.1 {
            stat.st_gid = gid;
        }
    }
    Ok(())
}

impl Asked {
    fn ask(&self, file: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&*socket, &[IoSlice::new(b"?")], &mut ancillary, SendFlags::NOSIGNAL)?;
        let mut answer = [0; ANSWER_BYTES];
        let (length, _) = recv(&*socket, &mut answer, RecvFlags::empty())?;
        let id = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().expect("four bytes"));
        match (length, answer[0]) {
            (ANSWER_BYTES, 1) => Ok((id(1), id(5))),
            _ => Err(io::Error::other("the process outside of the user namespace does not answer")),
        }
    }
}

/// Answers what the other end of a socket asks once. Returns whether there may be more.
pub fn answer(socket: &OwnedFd) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags);
    match received {
        Err(Errno::INTR | Errno::AGAIN) => return true,
        Ok(received) if received.bytes == 1 => {}
        _ => return false,
    }
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let mut answer = [0; ANSWER_BYTES];
    if let Some(stat) = file.and_then(|file| fstat(&file).ok()) {
        answer[0] = 1;
        answer[1..5].copy_from_slice(&stat.st_uid.to_ne_bytes());
        answer[5..].copy_from_slice(&stat.st_gid.to_ne_bytes());
    }
    send(socket, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok()
}
