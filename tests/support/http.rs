//! A web server that does whatever a test wants, on the loopback interface.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::program::DEADLINE;

/// What a client asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// What is no text in it is replaced.
    pub(crate) body: String,
}

/// What a server answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// After how many bytes of the body the connection is cut.
    pub(crate) cut: Option<usize>,
    /// Whether the connection is closed instead of an answer.
    pub(crate) refused: bool,
    /// After how many bytes of the body it goes on only when the gate is open.
    pub(crate) held: Option<(usize, Gate)>,
    /// How long after each kilobyte of the body it waits.
    pub(crate) pace: Option<Duration>,
}

/// Holds up whoever comes until it is opened, and tells that somebody came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Debug, Default)]
struct GateState {
    reached: bool,
    open: bool,
}

impl Gate {
    /// Waits until somebody waits for the gate to open.
    #[track_caller]
    pub(crate) fn wait_until_reached(&self) {
        assert!(self.wait(|state| state.reached), "nobody comes to the gate");
    }

    /// Lets everybody through, now and later.
    pub(crate) fn open(&self) {
        self.change(|state| state.open = true);
    }

    fn pass(&self) {
        self.change(|state| state.reached = true);
        self.wait(|state| state.open);
    }

    fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.0.0.lock().expect("no holder panics"));
        self.0.1.notify_all();
    }

    fn wait(&self, until: impl Fn(&GateState) -> bool) -> bool {
        let state = self.0.0.lock().expect("no holder panics");
        let waited = self.0.1.wait_timeout_while(state, DEADLINE, |state| !until(state));
        !waited.expect("no holder panics").1.timed_out()
    }
}

/// A web server; it stops when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    requests: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Request {
    /// Returns a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Response {
    /// Returns an answer without content.
    pub(crate) fn status(status: u16) -> Self {
        Response { status, ..Response::default() }
    }

    /// Returns content.
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Response { status: 200, body: body.into(), ..Response::default() }
    }

    /// Returns a redirect.
    pub(crate) fn redirect(location: impl Into<String>) -> Self {
        Response::status(307).with("location", location)
    }

    /// Adds a header.
    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

impl Server {
    /// Starts a server that answers each request with what the function returns.
    pub(crate) fn start(answer: impl Fn(&Request) -> Response + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has free ports");
        Self::start_at(listener, None, answer)
    }

    /// Starts such a server where a listener is, in whichever network; with TLS if that is given.
    pub(crate) fn start_at(
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
    ) -> Self {
        let listener = Arc::new(listener);
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let answer = Arc::new(answer);
        let thread = std::thread::spawn({
            let (requests, stop) = (Arc::clone(&requests), Arc::clone(&stop));
            let listener = Arc::clone(&listener);
            move || {
                for connection in listener.incoming().map_while(Result::ok) {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let (requests, answer) = (Arc::clone(&requests), Arc::clone(&answer));
                    let tls = tls.clone();
                    // The body is not to wait until the client has confirmed the head.
                    let _ = connection.set_nodelay(true);
                    std::thread::spawn(move || match tls {
                        None => serve(connection, &requests, &*answer),
                        Some(config) => {
                            let session = ServerConnection::new(config).ok()?;
                            serve(StreamOwned::new(session, connection), &requests, &*answer)
                        }
                    });
                }
            }
        });
        Server { address, listener, requests, stop, thread: Some(thread) }
    }

    /// Returns `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the port.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns what was asked so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no holder panics").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // It may be in a network where this process is not, so there is no connecting to it.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Answers requests until the client has no more; errors are the client's.
fn serve(
    connection: impl Read + Write,
    requests: &Mutex<Vec<Request>>,
    answer: &dyn Fn(&Request) -> Response,
) -> Option<()> {
    let mut connection = BufReader::new(connection);
    loop {
        let request = read_request(&mut connection)?;
        requests.lock().expect("no holder panics").push(request.clone());
        let response = answer(&request);
        if response.refused {
            return None;
        }
        let writer = connection.get_mut();
        let mut head = format!("HTTP/1.1 {} X\r\n", response.status);
        for (name, value) in &response.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !response.headers.iter().any(|(name, _)| name == "transfer-encoding") {
            head.push_str(&format!("content-length: {}\r\n", response.body.len()));
        }
        head.push_str("\r\n");
        writer.write_all(head.as_bytes()).ok()?;
        if request.method != "HEAD" {
            write_body(writer, &response)?;
        }
        writer.flush().ok()?;
        if response.cut.is_some() || request.header("connection") == Some("close") {
            return None;
        }
    }
}

fn write_body(writer: &mut impl Write, response: &Response) -> Option<()> {
    let length = response.cut.unwrap_or(response.body.len()).min(response.body.len());
    let mut body = &response.body[..length];
    if let Some((at, gate)) = &response.held {
        let (first, rest) = body.split_at(body.len().min(*at));
        writer.write_all(first).ok()?;
        writer.flush().ok()?;
        gate.pass();
        body = rest;
    }
    let Some(pace) = response.pace else { return writer.write_all(body).ok() };
    for part in body.chunks(1024) {
        writer.write_all(part).ok()?;
        writer.flush().ok()?;
        std::thread::park_timeout(pace);
    }
    Some(())
}

fn read_request(reader: &mut BufReader<impl Read>) -> Option<Request> {
    // Whoever tries TLS learns at once that it is not spoken here.
    if *reader.fill_buf().ok()?.first()? == 0x16 {
        return None;
    }
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = Request { method, path, headers, body: String::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok());
    let mut body = Vec::new();
    reader.take(length.unwrap_or(0)).read_to_end(&mut body).ok()?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    Some(request)
}
