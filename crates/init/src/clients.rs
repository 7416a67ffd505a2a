//! The clients of a keeper (`keeper`): hosts that start, follow or signal its step.
//!
//! A client may be any process of the user, even one of the step: its input is limited, and it cannot
//! block other clients.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use crate::backlog::Backlog;
use crate::frames::journal::StepEvent;
use crate::frames::{FailureKind, FrameBuffer, StepFailure, StepRequest};
use crate::os::{POLLERR, POLLHUP, POLLIN, POLLOUT, PollFd, is_temporary};

/// Limit of clients: beyond it, the oldest one is dropped, attached ones last.
const MAX_CLIENTS: usize = 16;
/// Size limit of a request: an id and two numbers.
const MAX_REQUEST_BYTES: usize = 256;
/// Maximum number of times that pending events are sent to one client before it is the next one's
/// turn.
const ROUNDS: usize = 8;

/// All connected clients.
#[derive(Default)]
pub struct Clients {
    all: Vec<KeeperClient>,
}

struct KeeperClient {
    socket: UnixStream,
    frames: FrameBuffer,
    /// Events sent so far; `None` until the client attaches to the step.
    host: Option<HostProgress>,
    /// Bytes to send, and the number of them already sent.
    outgoing: Vec<u8>,
    sent: usize,
    is_gone: bool,
}

/// Events that an attached host was sent: the output before the offset `cursor`, and the start and
/// the end of the step if `knows_start` and `knows_end` are set.
struct HostProgress {
    cursor: u64,
    knows_start: bool,
    knows_end: bool,
}

impl Clients {
    /// Adds a client that has sent no request.
    pub fn accept(&mut self, socket: UnixStream) {
        self.add(KeeperClient::new(socket));
    }

    /// Adds a host that receives the output from an offset on.
    pub fn attach(&mut self, socket: UnixStream, from: u64) {
        let mut client = KeeperClient::new(socket);
        client.attach(from);
        self.add(client);
    }

    fn add(&mut self, client: KeeperClient) {
        if self.all.len() >= MAX_CLIENTS {
            let first = self.all.iter().position(|client| !client.is_attached());
            self.all.remove(first.unwrap_or_default());
        }
        self.all.push(client);
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.all.iter().any(KeeperClient::is_attached)
    }

    /// Returns whether all attached hosts were sent the end of the step.
    pub fn know_end(&self) -> bool {
        self.all.iter().all(|client| {
            let host = client.host.as_ref().filter(|_| !client.is_gone);
            host.is_none_or(|host| host.knows_end && client.outgoing.is_empty())
        })
    }

    /// Appends a poll entry for each client.
    pub fn push_poll_entries(&self, entries: &mut Vec<PollFd>) {
        entries.extend(self.all.iter().map(|client| {
            let events = if client.outgoing.is_empty() { POLLIN } else { POLLIN | POLLOUT };
            PollFd::new(client.socket.as_fd(), events)
        }));
    }

    /// Reads the requests of clients whose poll entries are ready. Lost clients are dropped by [`Self::pump`].
    pub fn read_requests(&mut self, entries: &[PollFd], is_over: bool) -> Vec<StepRequest> {
        let mut requests = Vec::new();
        let mut is_yield_asked = false;
        for (client, entry) in self.all.iter_mut().zip(entries) {
            if client.is_gone || !entry.is(POLLIN | POLLHUP | POLLERR) {
                continue;
            }
            for request in client.read_requests() {
                match request {
                    StepRequest::Attach(attach) => client.attach(attach.from),
                    StepRequest::Yield => {
                        client.is_gone = true;
                        is_yield_asked = true;
                    }
                    StepRequest::Step(_) | StepRequest::Resize(_) => client.is_gone = true,
                    request => requests.push(request),
                }
            }
        }
        // Only now: the host may have been lost at the same time.
        if is_yield_asked && !is_over && !self.is_attached() {
            requests.push(StepRequest::Yield);
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
    fn new(socket: UnixStream) -> Self {
        // A blocking client would hold up the others.
        let is_gone = socket.set_nonblocking(true).is_err();
        let frames = FrameBuffer::new(MAX_REQUEST_BYTES);
        KeeperClient { socket, frames, host: None, outgoing: Vec::new(), sent: 0, is_gone }
    }

    fn attach(&mut self, from: u64) {
        self.host = Some(HostProgress { cursor: from, knows_start: false, knows_end: false });
    }

    fn is_attached(&self) -> bool {
        self.host.is_some() && !self.is_gone
    }

    /// Reads the requests of the client.
    fn read_requests(&mut self) -> Vec<StepRequest> {
        let mut requests = Vec::new();
        let mut bytes = [0; 4096];
        match self.socket.read(&mut bytes) {
            Err(error) if is_temporary(&error) => return requests,
            Ok(count) if count > 0 => self.frames.push(&bytes[..count]),
            _ => {
                self.is_gone = true;
                return requests;
            }
        }
        loop {
            match self.frames.decode_next(StepRequest::decode) {
                Ok(None) => return requests,
                Ok(Some(request)) => requests.push(request),
                Err(_) => {
                    self.is_gone = true;
                    return requests;
                }
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
        let Some(HostProgress { cursor, knows_start, knows_end }) = &mut self.host else {
            return false;
        };
        if is_started && !*knows_start {
            *knows_start = true;
            self.outgoing = StepEvent::Started.encode();
            return true;
        }
        self.outgoing = match (backlog.read(cursor), end) {
            (Some(output), _) if !output.is_empty() => output,
            _ if *knows_end => return false,
            (None, _) => {
                *knows_end = true;
                let failure = StepFailure::new(FailureKind::Forgotten, 0, "output");
                StepEvent::failed(backlog.end(), failure).encode()
            }
            // Also if the cursor is beyond the end.
            (Some(_), Some(end)) => {
                *knows_end = true;
                end.encode()
            }
            (Some(_), None) => return false,
        };
        true
    }
}
