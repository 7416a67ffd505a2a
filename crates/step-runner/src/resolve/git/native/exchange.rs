//! One HTTP request and its response, for which a fetch waits only until it is stopped.
//!
//! A thread receives the response and forwards it. The thread ends with the connection, or soon after the
//! receiver is dropped: a silent server costs only a thread until the connection times out.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;

use ureq::http::{HeaderMap, Method, Request, Response};
use ureq::{Agent, Error};

use super::transfer::{GitTransfer, POLL_INTERVAL, TransferError};

/// Size of a chunk, and number of chunks that are buffered.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNKS: usize = 4;

/// A response whose body is still to be read.
pub struct HttpAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: AnswerBody,
}

/// The body of a response.
pub struct AnswerBody {
    chunks: Receiver<Result<Vec<u8>, String>>,
    chunk: Vec<u8>,
    at: usize,
    left_bytes: u64,
    limit_bytes: u64,
    transfer: GitTransfer,
}

impl HttpAnswer {
    /// Returns a header as text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Sends a request and returns the response. Reading more than `limit_bytes` of its body fails.
pub fn send(
    agent: &Agent,
    request: Request<Vec<u8>>,
    limit_bytes: u64,
    transfer: &GitTransfer,
) -> Result<HttpAnswer, TransferError> {
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
        // The receiver may be gone.
        Err(error) => drop(head.send(Err(explain(error)))),
    };
    let thread = thread::Builder::new().name("git".to_owned()).spawn(talk);
    thread.map_err(|error| transfer.failure(error))?;
    let answer = wait(&receive_head, transfer)?.unwrap_or_else(|| Err("no answer".to_owned()));
    let (status, headers) = answer.map_err(TransferError::Message)?;
    let transfer = transfer.clone();
    let body = AnswerBody {
        chunks,
        chunk: Vec::new(),
        at: 0,
        left_bytes: limit_bytes,
        limit_bytes,
        transfer,
    };
    Ok(HttpAnswer { status, headers, body })
}

fn run(agent: &Agent, request: Request<Vec<u8>>) -> Result<Response<ureq::Body>, Error> {
    if request.method() == Method::GET { agent.run(request.map(drop)) } else { agent.run(request) }
}

/// Forwards a body until its end, or until the receiver is gone.
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

/// Waits for a value from a thread; returns `None` when the thread has ended.
fn wait<T>(receiver: &Receiver<T>, transfer: &GitTransfer) -> Result<Option<T>, TransferError> {
    loop {
        transfer.check()?;
        match receiver.recv_timeout(POLL_INTERVAL) {
            Ok(value) => return Ok(Some(value)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

impl Read for AnswerBody {
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

impl AnswerBody {
    fn fault(&self, error: String) -> io::Error {
        self.transfer.set_fault(&error);
        io::Error::other(error)
    }
}

/// Returns a short description of an error.
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
