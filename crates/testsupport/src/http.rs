//! A scriptable web server on the loopback interface.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::program::DEADLINE;

/// A request of a client.
#[derive(Clone, Debug)]
pub struct WebRequest {
    pub method: String,
    /// With the query.
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Non-UTF-8 bytes are replaced.
    pub body: String,
}

/// A response of the server.
#[derive(Clone, Debug, Default)]
pub struct WebResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Number of body bytes after which the connection is cut.
    pub cut: Option<usize>,
    /// If set, the connection is closed without a response.
    pub refused: bool,
    /// Number of body bytes after which the server waits for the gate to open.
    pub held: Option<(usize, Gate)>,
    /// Pause after each kilobyte of the body.
    pub pace: Option<Duration>,
}

/// Blocks threads until it is opened, and reports that a thread has arrived.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Debug, Default)]
struct GateState {
    reached: bool,
    open: bool,
}

impl Gate {
    /// Waits until a thread has arrived at the gate.
    #[track_caller]
    pub fn wait_until_reached(&self) {
        assert!(self.wait(|state| state.reached), "nobody comes to the gate");
    }

    /// Releases all threads, now and later.
    pub fn open(&self) {
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

/// A web server, stopped on drop.
pub struct WebServer {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<WebRequest>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WebRequest {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl WebResponse {
    /// Returns a response without a body.
    pub fn status(status: u16) -> Self {
        WebResponse { status, ..WebResponse::default() }
    }

    /// Returns a 200 response.
    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        WebResponse { status: 200, body: body.into(), ..WebResponse::default() }
    }

    /// Returns a redirect.
    pub fn redirect(location: impl Into<String>) -> Self {
        WebResponse::status(307).with("location", location)
    }

    /// Adds a header.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

impl WebServer {
    /// Starts a server that answers each request with the function's response.
    pub fn start(answer: impl Fn(&WebRequest) -> WebResponse + Send + Sync + 'static) -> Self {
        let listener = bound_socket("127.0.0.1:0".parse().expect("it is an address"));
        listen(&listener);
        Self::start_at(listener, None, answer)
    }

    /// Starts a server on a listener, in any network namespace, with TLS if configured.
    pub fn start_at(
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&WebRequest) -> WebResponse + Send + Sync + 'static,
    ) -> Self {
        let listener = Arc::new(listener);
        let address = listener.local_addr().expect("it is bound");
        let connections = Arc::<AtomicUsize>::default();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let answer = Arc::new(answer);
        let thread = std::thread::spawn({
            let (requests, stop) = (Arc::clone(&requests), Arc::clone(&stop));
            let (listener, connections) = (Arc::clone(&listener), Arc::clone(&connections));
            move || {
                for connection in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    connections.fetch_add(1, Ordering::SeqCst);
                    let Ok(connection) = connection else { continue };
                    let (requests, answer) = (Arc::clone(&requests), Arc::clone(&answer));
                    let tls = tls.clone();
                    // Without this, the body waits until the client has acknowledged the head.
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
        WebServer { address, listener, connections, requests, stop, thread: Some(thread) }
    }

    /// Stops a server of [`WebServer::start`]. Its port refuses connections until the returned socket is closed: no
    /// server of another process gets the port.
    pub fn refuse_connections(self) -> TcpListener {
        bound_socket(self.address)
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the number of connections before this one, with and without a request. Connections are accepted in
    /// order, so that all earlier ones are counted when this one is answered.
    pub fn connections_before(&self, mut own: TcpStream) -> usize {
        own.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("the server reads");
        own.read_exact(&mut [0]).expect("the server answers");
        self.connections.load(Ordering::SeqCst) - 1
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.requests.lock().expect("no holder panics").clone()
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Connecting to wake the thread would fail if the listener is in another network namespace.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Returns a socket that is bound to an IPv4 address and refuses connections until [`listen`] is called.
/// Several such sockets can have the same port.
pub fn bound_socket(address: SocketAddr) -> TcpListener {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .expect("a socket can be made");
    // The address may have closed connections.
    set_socket_reuseaddr(&socket, true).expect("it is a socket");
    set_socket_reuseport(&socket, true).expect("it is a socket");
    rustix::net::bind(&socket, &address).expect("the address is free");
    socket.into()
}

/// Begins to accept connections to a [`bound_socket`].
pub fn listen(socket: &TcpListener) {
    rustix::net::listen(socket, 128).expect("the socket is bound");
}

/// Answers requests until the client closes the connection. I/O errors are the client's.
fn serve(
    connection: impl Read + Write,
    requests: &Mutex<Vec<WebRequest>>,
    answer: &dyn Fn(&WebRequest) -> WebResponse,
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

fn write_body(writer: &mut impl Write, response: &WebResponse) -> Option<()> {
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

fn read_request(reader: &mut BufReader<impl Read>) -> Option<WebRequest> {
    // Clients that try TLS get an immediate close.
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
    let mut request = WebRequest { method, path, headers, body: String::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok());
    let mut body = Vec::new();
    reader.take(length.unwrap_or(0)).read_to_end(&mut body).ok()?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    Some(request)
}
