//! The hosts that follow a step (`keeper`).
//!
//! A host may be any process of the user, even one of the step: its input is limited, and it cannot
//! block other hosts.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::backlog::Backlog;
use crate::os::{POLLIN, POLLOUT, PollFd, is_temporary};
use oci_hooks_init::frames::journal::StepEvent;
use oci_hooks_init::frames::{FailureKind, FrameBuffer, StepFailure, StepRequest};

/// Limit of clients, beyond which the oldest one is dropped.
const MAX_CLIENTS: usize = 16;
/// Size limit of a request, whose payload is a number.
const MAX_REQUEST_BYTES: usize = 8;
/// Maximum number of times that pending events are sent to one client before it is the next one's
/// turn.
const ROUNDS: usize = 8;

/// All attached hosts.
#[derive(Default)]
pub struct Clients {
    all: Vec<KeeperClient>,
}

struct KeeperClient {
    socket: UnixStream,
    frames: FrameBuffer,
    /// Offset after the output that the client was sent.
    cursor: u64,
    /// Set once the client was sent the start of the step.
    knows_start: bool,
    /// Set once the client was sent the end of the step.
    knows_end: bool,
    /// Bytes to send, and the number of them already sent.
    outgoing: Vec<u8>,
    sent: usize,
    is_gone: bool,
}

impl Clients {
    /// Adds a host that receives the output from an offset on. A heartbeat shows it that it is attached.
    pub fn attach(&mut self, socket: OwnedFd, from: u64) {
        if self.all.len() >= MAX_CLIENTS {
            self.all.remove(0);
        }
        let socket = UnixStream::from(socket);
        // A blocking client would hold up the others.
        let is_gone = socket.set_nonblocking(true).is_err();
        let mut client = KeeperClient {
            socket,
            frames: FrameBuffer::new(MAX_REQUEST_BYTES),
            cursor: from,
            knows_start: false,
            knows_end: false,
            outgoing: StepEvent::Heartbeat.encode(),
            sent: 0,
            is_gone,
        };
        client.flush();
        self.all.push(client);
    }

    pub fn is_attached(&self) -> bool {
        self.all.iter().any(|client| !client.is_gone)
    }

    /// Appends a poll entry for each client.
    pub fn push_poll_entries(&self, entries: &mut Vec<PollFd>) {
        entries.extend(self.all.iter().map(|client| {
            let events = if client.outgoing.is_empty() { POLLIN } else { POLLIN | POLLOUT };
            PollFd::new(client.socket.as_fd(), events)
        }));
    }

    /// Reads the requests of clients whose poll entries are ready. Lost clients are dropped by [`Self::pump`].
    pub fn read_requests(&mut self, entries: &[PollFd]) -> Vec<StepRequest> {
        let mut requests = Vec::new();
        for (client, entry) in self.all.iter_mut().zip(entries) {
            if !client.is_gone && entry.is_readable() {
                client.is_gone = !client.read_requests(&mut requests);
            }
        }
        requests
    }

    /// Sends pending events to all clients, as far as they accept them.
    pub fn pump(&mut self, backlog: &Backlog, is_started: bool, end: Option<&StepEvent>) {
        for client in &mut self.all {
            for _ in 0..ROUNDS {
                if client.is_gone || !client.flush() || !client.next(backlog, is_started, end) {
                    break;
                }
            }
        }
        self.all.retain(|client| !client.is_gone);
    }
}

impl KeeperClient {
    /// Appends the requests of the client; returns whether it goes on.
    fn read_requests(&mut self, requests: &mut Vec<StepRequest>) -> bool {
        let mut bytes = [0; 4096];
        match self.socket.read(&mut bytes) {
            Err(error) if is_temporary(&error) => return true,
            Ok(count) if count > 0 => self.frames.push(&bytes[..count]),
            _ => return false,
        }
        loop {
            match self.frames.decode_next(StepRequest::decode) {
                Ok(None) => return true,
                Ok(Some(StepRequest::Alive)) => {}
                Ok(Some(request @ (StepRequest::Signal(_) | StepRequest::Received(_)))) => {
                    requests.push(request);
                }
                _ => return false,
            }
        }
    }

    /// Sends pending bytes; returns whether all were sent.
    fn flush(&mut self) -> bool {
        while self.sent < self.outgoing.len() {
            match self.socket.write(&self.outgoing[self.sent..]) {
                Ok(count) if count > 0 => self.sent += count,
                Err(error) if is_temporary(&error) => return false,
                _ => {
                    self.is_gone = true;
                    return false;
                }
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        true
    }

    /// Prepares the next event; returns whether there is one.
    fn next(&mut self, backlog: &Backlog, is_started: bool, end: Option<&StepEvent>) -> bool {
        if is_started && !self.knows_start {
            self.knows_start = true;
            self.outgoing = StepEvent::Started.encode();
            return true;
        }
        self.outgoing = match (backlog.read(&mut self.cursor), end) {
            (Some(output), _) if !output.is_empty() => output,
            _ if self.knows_end => return false,
            (None, _) => {
                self.knows_end = true;
                let failure = StepFailure::new(FailureKind::Forgotten, 0, "output");
                StepEvent::failed(backlog.end(), failure).encode()
            }
            // Also if the cursor is beyond the end.
            (Some(_), Some(end)) => {
                self.knows_end = true;
                end.encode()
            }
            (Some(_), None) => return false,
        };
        true
    }
}
