//! Web server for tests, on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Server that answers one request per connection, one at a time.
pub struct FakeServer {
    address: SocketAddr,
    shared: Arc<FakeServerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct FakeServerState {
    is_over: AtomicBool,
    seen: Mutex<Vec<SeenRequest>>,
}

/// Received request.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// Response of the server.
pub struct FakeReply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    announced: usize,
}

impl FakeServer {
    /// Starts a server, which runs until it is dropped.
    pub fn serve(answer: impl FnMut(&SeenRequest) -> FakeReply + Send + 'static) -> Self {
        Self::serve_on(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    /// Starts a server that accepts the connections of a listener.
    pub fn serve_on(
        listener: TcpListener,
        mut answer: impl FnMut(&SeenRequest) -> FakeReply + Send + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(FakeServerState::default());
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for stream in listener.incoming() {
                    if shared.is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    // Clients may disconnect at any time.
                    let _ = exchange(&stream.unwrap(), &shared, &mut answer);
                }
            }
        });
        FakeServer { address, shared, thread: Some(thread) }
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the requests so far.
    pub fn seen_requests(&self) -> Vec<SeenRequest> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) && !thread::panicking() {
            panic!("the server panicked");
        }
    }
}

impl SeenRequest {
    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl FakeReply {
    pub(crate) fn ok(body: &[u8]) -> Self {
        FakeReply::status(200, body)
    }

    pub(crate) fn status(status: u16, body: &[u8]) -> Self {
        FakeReply { status, headers: Vec::new(), body: body.to_vec(), announced: body.len() }
    }

    pub(crate) fn redirect(status: u16, location: &str) -> Self {
        FakeReply::status(status, b"").with("location", location)
    }

    /// Closes the connection without a response.
    pub(crate) fn without_response() -> Self {
        FakeReply::status(0, b"")
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends a `Content-Length` that differs from the body.
    pub(crate) fn announce(mut self, length: usize) -> Self {
        self.announced = length;
        self
    }
}

fn exchange(
    stream: &TcpStream,
    shared: &FakeServerState,
    answer: &mut impl FnMut(&SeenRequest) -> FakeReply,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut words = lines[0].split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let headers = lines[1..].iter().filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let mut seen = SeenRequest { method, path, headers: headers.collect(), body: Vec::new() };
    let length = seen.header("content-length").map_or(0, |length| length.parse().unwrap());
    reader.take(length).read_to_end(&mut seen.body)?;
    shared.seen.lock().unwrap().push(seen.clone());
    let reply = answer(&seen);
    if reply.status == 0 {
        return Ok(());
    }
    let mut head = format!("HTTP/1.1 {} x\r\nconnection: close\r\n", reply.status);
    head += &format!("content-length: {}\r\n", reply.announced);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut stream = stream;
    stream.write_all(head.as_bytes())?;
    stream.write_all(b"\r\n")?;
    stream.write_all(&reply.body)
}
