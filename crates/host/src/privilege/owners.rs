//! True owners of files, for a process in a user namespace. The kernel shows it the overflow id for all unmapped
//! users, including root of the host. Its parent process, outside of the namespace, answers with the true owners.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use oci_hooks_files::fs::set_owner_correction;
use rustix::fs::{Stat, fstat};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};

/// Connection to the parent process outside of the user namespace, and the overflow uid and gid.
struct OwnerQuery {
    socket: Mutex<OwnedFd>,
    overflow: (u32, u32),
}

static OWNER_QUERY: OnceLock<OwnerQuery> = OnceLock::new();

/// Size of an answer: a byte that is 1 on success, and the ids of user and group.
const ANSWER_BYTES: usize = 9;

/// Makes the process at the other end of a socket the source of true owners from now on.
pub fn ask(socket: OwnedFd) {
    let overflow = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(65534)
    };
    let overflow = (overflow("overflowuid"), overflow("overflowgid"));
    // A process enters a user namespace only once.
    let _ = OWNER_QUERY.set(OwnerQuery { socket: Mutex::new(socket), overflow });
    set_owner_correction(correct_owner);
}

/// Replaces the overflow uid and gid in the status of a file by the true owner and group, which the
/// parent process outside of the user namespace reports.
fn correct_owner(file: BorrowedFd<'_>, stat: &mut Stat) -> io::Result<()> {
    if let Some(asked) = OWNER_QUERY.get()
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

impl OwnerQuery {
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

/// Answers one request from the other end of a socket. Returns whether there may be more.
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
