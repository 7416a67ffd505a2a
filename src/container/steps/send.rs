//! What waits to be sent to a first process, and the descriptors that go with its first byte.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};

use crate::sys::init::frames::STREAMS;

/// Bytes to send, and how many have been.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Closed as soon as they are sent.
    descriptors: Option<[OwnedFd; STREAMS]>,
}

impl Outgoing {
    /// Sends a step and its streams next.
    pub(super) fn push_step(&mut self, frame: Vec<u8>, descriptors: [OwnedFd; STREAMS]) {
        self.bytes = frame;
        self.sent = 0;
        self.descriptors = Some(descriptors);
    }

    pub(super) fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Sends what the socket takes now.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.is_empty() {
            let rest = &self.bytes[self.sent..];
            let result = match &self.descriptors {
                Some(descriptors) => send_with(socket, rest, descriptors),
                None => send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT),
            };
            match result {
                Ok(count) => {
                    self.sent += count;
                    self.descriptors = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        // There may be secrets in it, and there is room for them no longer than for a step.
        *self = Outgoing::default();
        Ok(())
    }
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[OwnedFd; STREAMS],
) -> Result<usize, Errno> {
    let descriptors = descriptors.each_ref().map(|descriptor| descriptor.as_fd());
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(STREAMS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}
