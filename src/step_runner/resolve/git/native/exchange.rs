//! One request and its answer, neither of which anybody waits for longer than the fetch goes on.
//!
//! A thread talks to the server and hands on what comes. It ends with the connection, or soon after nobody
//! listens to it: a server that is silent costs a thread for as long as it may be silent, and nothing else.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;

use ureq::http::{HeaderMap, Method, Request, Response};
use ureq::{Agent, Error};

use super::transfer::{Failure, POLL_INTERVAL, Transfer};

/// How much is read at once, and how many of these wait to be taken.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS: usize = 4;

/// An answer whose body is still to be read.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Body,
}

/// The body of an answer.
pub struct Body {
    chunks: Receiver<Result<Vec<u8>, String>>,
    chunk: Vec<u8>,
    at: usize,
    left_bytes: u64,
    limit_bytes: u64,
    transfer: Transfer,
}

impl Answer {
    /// Returns a header as text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Sends a request and returns the answer; reading more than the limit of its body fails.
pub fn send(
    agent: &Agent,
    request: Request<Vec<u8>>,
    limit_bytes: u64,
    transfer: &Transfer,
) -> Result<Answer, Failure> {
    let (head, receive_head) = sync_channel(1);
    let (chunk, chunks) = sync_channel(CHUNKS);
    let agent = agent.clone();
    let talk = move || match run(&agent, request) {
        Ok(response) => {
            let (parts, body) = response.into_parts();
            if head.send(Ok((parts.status.as_u16(), parts.headers))).is_ok() {
                forward(body.into_reader(), &chunk);
            }
        }
        // Nobody may be there any more.
        Err(error) => drop(head.send(Err(explain(error)))),
    };
    let thread = thread::Builder::new().name("git".to_owned()).spawn(talk);
    thread.map_err(|error| transfer.failure(error))?;
    let answer = wait(&receive_head, transfer)?.unwrap_or_else(|| Err("no answer".to_owned()));
    let (status, headers) = answer.map_err(Failure::Message)?;
    let transfer = transfer.clone();
    let body =
        Body { chunks, chunk: Vec::new(), at: 0, left_bytes: limit_bytes, limit_bytes, transfer };
    Ok(Answer { status, headers, body })
}

fn run(agent: &Agent, request: Request<Vec<u8>>) -> Result<Response<ureq::Body>, Error> {
    if request.method() == Method::GET { agent.run(request.map(drop)) } else { agent.run(request) }
}

/// Reads a body to its end, or as long as somebody listens.
fn forward(mut body: impl Read, chunks: &SyncSender<Result<Vec<u8>, String>>) {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = match body.read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => {
                chunk.truncate(read);
                Ok(chunk)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(explain_io(error)),
        };
        let is_last = read.is_err();
        if chunks.send(read).is_err() || is_last {
            return;
        }
    }
}

/// Waits for what a thread sends; it sends no more if there is nothing.
fn wait<T>(receiver: &Receiver<T>, transfer: &Transfer) -> Result<Option<T>, Failure> {
    loop {
        transfer.check()?;
        match receiver.recv_timeout(POLL_INTERVAL) {
            Ok(value) => return Ok(Some(value)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.chunk.len() {
            self.at = 0;
            self.chunk = match wait(&self.chunks, &self.transfer) {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(error))) => return Err(self.fault(error)),
                Ok(None) => return Ok(0),
                Err(_) => return Err(io::Error::other("stopped")),
            };
            let length = self.chunk.len() as u64;
            let Some(left) = self.left_bytes.checked_sub(length) else {
                let limit = self.limit_bytes;
                return Err(self.fault(format!("the server sends more than {limit} bytes")));
            };
            self.left_bytes = left;
        }
        let read = buffer.len().min(self.chunk.len() - self.at);
        buffer[..read].copy_from_slice(&self.chunk[self.at..self.at + read]);
        self.at += read;
        Ok(read)
    }
}

impl Body {
    fn fault(&self, error: String) -> io::Error {
        self.transfer.set_fault(&error);
        io::Error::other(error)
    }
}

/// Returns what went wrong in few words.
fn explain(error: Error) -> String {
    match error {
        Error::Timeout(_) => "the server does not answer".to_owned(),
        Error::HostNotFound => "unknown host".to_owned(),
        Error::Io(error) => explain_io(error),
        Error::Rustls(error) => format!("TLS: {error}"),
        error => error.to_string(),
    }
}

fn explain_io(error: io::Error) -> String {
    match error.downcast::<Error>() {
        Ok(error) => explain(error),
        Err(error) => match error.to_string().split_once(" (os error ") {
            Some((text, _)) => text.to_owned(),
            None => error.to_string(),
        },
    }
}
