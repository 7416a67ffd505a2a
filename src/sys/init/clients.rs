//! The hosts of a kept step: whoever is connected to its keeper.
//!
//! They are the user's, and so may be the step itself: what they say is bounded, and nobody is waited for.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use crate::backlog::{Backlog, Cursor};
use crate::frames::journal::{JournalRequest, StepEvent};
use crate::frames::{Answer, Failure, FailureKind, Frames, Request};
use crate::os::{POLLERR, POLLHUP, POLLIN, POLLOUT, PollFd};

/// How many there may be: of more, those go that were there first.
const MAX_CLIENTS: usize = 16;
/// The longest request: an id and two numbers.
const MAX_REQUEST_BYTES: usize = 256;
/// How often one gets something before the step is looked after.
const ROUNDS: usize = 8;

/// Everybody who is connected.
#[derive(Default)]
pub struct Clients {
    all: Vec<Client>,
}

/// What hosts want.
pub enum Heard {
    /// One has all before this offset.
    Received(u64),
    Request(Request),
    /// Nobody is attached, and another step begins.
    Yield,
}

struct Client {
    socket: UnixStream,
    frames: Frames,
    role: Role,
    /// What is to be sent, and how much of it was.
    outgoing: Vec<u8>,
    sent: usize,
    is_gone: bool,
}

enum Role {
    /// It has said nothing so far.
    Unknown,
    /// It gets what the step writes.
    Attached { cursor: Cursor, knows_start: bool, knows_end: bool },
    /// It waits for the end of the step.
    Waiting,
}

impl Client {
    fn new(socket: UnixStream, role: Role) -> Self {
        // If it cannot be, a slow one would keep the others waiting.
        let is_gone = socket.set_nonblocking(true).is_err();
        let frames = Frames::new(MAX_REQUEST_BYTES);
        Client { socket, frames, role, outgoing: Vec::new(), sent: 0, is_gone }
    }

    fn is_attached(&self) -> bool {
        matches!(self.role, Role::Attached { .. })
    }
}

impl Clients {
    /// Adds somebody who has not said anything.
    pub fn accept(&mut self, socket: UnixStream) {
        self.add(Client::new(socket, Role::Unknown));
    }

    /// Adds a host that wants what comes from an offset on.
    pub fn attach(&mut self, socket: UnixStream, from: u64) {
        self.add(Client::new(socket, attached(from)));
    }

    fn add(&mut self, client: Client) {
        if self.all.len() >= MAX_CLIENTS {
            let first = self.all.iter().position(|client| !client.is_attached());
            self.all.remove(first.unwrap_or_default());
        }
        self.all.push(client);
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.all.iter().any(Client::is_attached)
    }

    /// Returns whether everybody who is attached was sent how the step ended.
    pub fn know_end(&self) -> bool {
        let knows = |client: &Client| match client.role {
            Role::Attached { knows_end, .. } => knows_end && client.outgoing.is_empty(),
            Role::Unknown | Role::Waiting => true,
        };
        self.all.iter().all(knows)
    }

    /// Appends what to wait for: an entry for each.
    pub fn push_poll_entries(&self, entries: &mut Vec<PollFd>) {
        entries.extend(self.all.iter().map(|client| {
            let events = if client.outgoing.is_empty() { POLLIN } else { POLLIN | POLLOUT };
            PollFd::new(client.socket.as_fd(), events)
        }));
    }

    /// Reads what those say whose entries say that there is something.
    pub fn hear(&mut self, entries: &[PollFd], is_over: bool) -> Vec<Heard> {
        let mut heard = Vec::new();
        let is_attended = self.is_attached();
        for (client, entry) in self.all.iter_mut().zip(entries) {
            if entry.is(POLLIN | POLLHUP | POLLERR) && !client.is_gone {
                let said = client.hear();
                for request in said {
                    match request {
                        JournalRequest::Attach(attach) => client.role = attached(attach.from),
                        JournalRequest::Yield if is_attended || is_over => client.is_gone = true,
                        JournalRequest::Yield => {
                            client.role = Role::Waiting;
                            heard.push(Heard::Yield);
                        }
                        JournalRequest::Received(offset) => heard.push(Heard::Received(offset)),
                        JournalRequest::Signal(signal) => {
                            heard.push(Heard::Request(Request::Signal(signal)));
                        }
                        JournalRequest::Kill => heard.push(Heard::Request(Request::Kill)),
                        JournalRequest::Alive => {}
                    }
                }
            }
        }
        self.all.retain(|client| !client.is_gone);
        heard
    }

    /// Gives everybody what there is for them, as far as they take it.
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

fn attached(from: u64) -> Role {
    Role::Attached { cursor: Cursor::new(from), knows_start: false, knows_end: false }
}

impl Client {
    /// Reads what it says.
    fn hear(&mut self) -> Vec<JournalRequest> {
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

    /// Sends what is to be sent; returns whether all of it went.
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

    /// Finds what it gets next; returns whether there is something.
    fn next(&mut self, backlog: &Backlog, is_started: bool, end: Option<&StepEvent>) -> bool {
        match &mut self.role {
            Role::Attached { knows_start, .. } if is_started && !*knows_start => {
                *knows_start = true;
                self.outgoing = StepEvent::Started.encode();
            }
            Role::Attached { cursor, knows_end, .. } => match backlog.read(cursor) {
                Ok(output) if !output.is_empty() => self.outgoing = output,
                // Also behind the end, where the other has more than there ever was.
                Ok(_) => match end.filter(|_| !*knows_end) {
                    Some(end) => {
                        *knows_end = true;
                        self.outgoing = end.encode();
                    }
                    None => return false,
                },
                Err(_) if *knows_end => return false,
                Err(error) => {
                    *knows_end = true;
                    self.outgoing =
                        StepEvent::Ended { offset: backlog.end(), end: lost(&error) }.encode();
                }
            },
            Role::Waiting => {
                self.is_gone = end.is_some();
                return false;
            }
            Role::Unknown => return false,
        }
        true
    }
}

fn lost(error: &io::Error) -> Answer {
    let errno = error.raw_os_error().unwrap_or_default();
    let path = b"output".to_vec();
    Answer::Failed(Failure { kind: FailureKind::Forgotten, errno, path, found: Vec::new() })
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
