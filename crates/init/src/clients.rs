//! The hosts of a kept step: clients of its keeper.
//!
//! A client may be any process of the user, even one of the step: its input is limited, and it cannot
//! block other clients.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use crate::backlog::Backlog;
use crate::frames::journal::{JournalRequest, StepEvent};
use crate::frames::{StepFailure, FailureKind, FrameBuffer, StepRequest};
use crate::os::{POLLERR, POLLHUP, POLLIN, POLLOUT, PollFd, is_temporary};

/// Limit of clients: beyond it, the oldest one is dropped, attached ones last.
const MAX_CLIENTS: usize = 16;
/// Size limit of a request: an id and two numbers.
const MAX_REQUEST_BYTES: usize = 256;
/// Rounds of sending to one client before the step is handled.
const ROUNDS: usize = 8;

/// All connected clients.
#[derive(Default)]
pub struct Clients {
    all: Vec<KeeperClient>,
}

/// Requests of hosts.
pub enum ClientRequest {
    /// A host has received everything before this offset.
    Received(u64),
    Request(StepRequest),
    /// Another step begins, and no host is attached.
    Yield,
}

struct KeeperClient {
    socket: UnixStream,
    frames: FrameBuffer,
    role: ClientRole,
    /// Bytes to send, and the number of them already sent.
    outgoing: Vec<u8>,
    sent: usize,
    is_gone: bool,
}

enum ClientRole {
    Unknown,
    /// Receives the output of the step.
    Attached { cursor: u64, knows_start: bool, knows_end: bool },
    /// Waits for the end of the step.
    Waiting,
}

impl KeeperClient {
    fn new(socket: UnixStream, role: ClientRole) -> Self {
        // A blocking client would hold up the others.
        let is_gone = socket.set_nonblocking(true).is_err();
        let frames = FrameBuffer::new(MAX_REQUEST_BYTES);
        KeeperClient { socket, frames, role, outgoing: Vec::new(), sent: 0, is_gone }
    }

    fn is_attached(&self) -> bool {
        matches!(self.role, ClientRole::Attached { .. })
    }
}

impl Clients {
    /// Adds a client that has sent no request.
    pub fn accept(&mut self, socket: UnixStream) {
        self.add(KeeperClient::new(socket, ClientRole::Unknown));
    }

    /// Adds a host that receives the output from an offset on.
    pub fn attach(&mut self, socket: UnixStream, from: u64) {
        self.add(KeeperClient::new(socket, attached_role(from)));
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
        let knows = |client: &KeeperClient| match client.role {
            ClientRole::Attached { knows_end, .. } => knows_end && client.outgoing.is_empty(),
            ClientRole::Unknown | ClientRole::Waiting => true,
        };
        self.all.iter().all(knows)
    }

    /// Appends a poll entry for each client.
    pub fn push_poll_entries(&self, entries: &mut Vec<PollFd>) {
        entries.extend(self.all.iter().map(|client| {
            let events = if client.outgoing.is_empty() { POLLIN } else { POLLIN | POLLOUT };
            PollFd::new(client.socket.as_fd(), events)
        }));
    }

    /// Reads the requests of clients whose poll entries are ready.
    pub fn read_requests(&mut self, entries: &[PollFd], is_over: bool) -> Vec<ClientRequest> {
        let mut heard = Vec::new();
        let is_attended = self.is_attached();
        for (client, entry) in self.all.iter_mut().zip(entries) {
            if entry.is(POLLIN | POLLHUP | POLLERR) && !client.is_gone {
                let said = client.read_requests();
                for request in said {
                    match request {
                        JournalRequest::Attach(attach) => client.role = attached_role(attach.from),
                        JournalRequest::Yield if is_attended || is_over => client.is_gone = true,
                        JournalRequest::Yield => {
                            client.role = ClientRole::Waiting;
                            heard.push(ClientRequest::Yield);
                        }
                        JournalRequest::Received(offset) => heard.push(ClientRequest::Received(offset)),
                        JournalRequest::Signal(signal) => {
                            heard.push(ClientRequest::Request(StepRequest::Signal(signal)));
                        }
                        JournalRequest::Kill => heard.push(ClientRequest::Request(StepRequest::Kill)),
                        JournalRequest::Alive => {}
                    }
                }
            }
        }
        self.all.retain(|client| !client.is_gone);
        heard
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

fn attached_role(from: u64) -> ClientRole {
    ClientRole::Attached { cursor: from, knows_start: false, knows_end: false }
}

impl KeeperClient {
    /// Reads the requests of the client.
    fn read_requests(&mut self) -> Vec<JournalRequest> {
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
            let request = match self.frames.take() {
                Ok(None) => return requests,
                Ok(Some((kind, payload))) => JournalRequest::decode(kind, &payload),
                Err(error) => Err(error),
            };
            match request {
                Ok(request) => requests.push(request),
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
        match &mut self.role {
            ClientRole::Attached { knows_start, .. } if is_started && !*knows_start => {
                *knows_start = true;
                self.outgoing = StepEvent::Started.encode();
            }
            ClientRole::Attached { cursor, knows_end, .. } => match backlog.read(cursor) {
                Some(output) if !output.is_empty() => self.outgoing = output,
                // Also if the cursor is beyond the end.
                Some(_) => match end.filter(|_| !*knows_end) {
                    Some(end) => {
                        *knows_end = true;
                        self.outgoing = end.encode();
                    }
                    None => return false,
                },
                None if *knows_end => return false,
                None => {
                    *knows_end = true;
                    self.outgoing = StepEvent::failed(backlog.end(), forgotten()).encode();
                }
            },
            ClientRole::Waiting => {
                self.is_gone = end.is_some();
                return false;
            }
            ClientRole::Unknown => return false,
        }
        true
    }
}

fn forgotten() -> StepFailure {
    let path = b"output".to_vec();
    StepFailure { kind: FailureKind::Forgotten, errno: 0, path, found: Vec::new() }
}
