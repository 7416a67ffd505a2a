//! A web server that does whatever a test wants, on the loopback interface.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What a client asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
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
}

/// A web server; it stops when dropped.
pub(crate) struct Server {
    address: SocketAddr,
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
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let answer = Arc::new(answer);
        let thread = std::thread::spawn({
            let (requests, stop) = (Arc::clone(&requests), Arc::clone(&stop));
            move || {
                for connection in listener.incoming().map_while(Result::ok) {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let (requests, answer) = (Arc::clone(&requests), Arc::clone(&answer));
                    std::thread::spawn(move || serve(connection, &requests, &*answer));
                }
            }
        });
        Server { address, requests, stop, thread: Some(thread) }
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
        drop(TcpStream::connect(self.address));
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Answers requests until the client has no more; errors are the client's.
fn serve(
    connection: TcpStream,
    requests: &Mutex<Vec<Request>>,
    answer: &dyn Fn(&Request) -> Response,
) -> Option<()> {
    let mut reader = BufReader::new(connection.try_clone().ok()?);
    let mut writer = connection;
    loop {
        let request = read_request(&mut reader)?;
        requests.lock().expect("no holder panics").push(request.clone());
        let response = answer(&request);
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
            let length = response.cut.unwrap_or(response.body.len());
            writer.write_all(&response.body[..length.min(response.body.len())]).ok()?;
        }
        writer.flush().ok()?;
        if response.cut.is_some() {
            return None;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
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
    reader.take(length.unwrap_or(0)).read_to_string(&mut request.body).ok()?;
    Some(request)
}
