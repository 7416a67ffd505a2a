//! One connection through the proxy: a request, or a stream that it is upgraded to.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{ApiRequest, ConnectionCut, ErrorResponse, ProxyState};

const AT_ONCE: usize = 64 << 10;
/// Exceeds the head of any request of the tests.
const MAX_HEAD: usize = 1 << 20;
/// Interval for checking whether a stream is to be closed at the end of a frame.
const LOOK: Duration = Duration::from_millis(20);
/// A WebSocket close frame of a server, with status 1000.
const GOODBYE: [u8; 4] = [0x88, 2, 0x03, 0xe8];

/// The server and the TLS configurations.
pub struct UpstreamServer {
    pub address: String,
    pub acceptor: TlsAcceptor,
    pub connector: TlsConnector,
}

/// Serves a client until the client, the server or a fault ends the connection.
pub async fn serve(client: TcpStream, server: Arc<UpstreamServer>, faults: Arc<ProxyState>) {
    // With a second descriptor the connection can be cut while the relay uses the first.
    let Ok(socket) = client.as_fd().try_clone_to_owned() else { return };
    let _ = client.set_nodelay(true);
    let mut cuts = faults.cuts.subscribe();
    let cut = tokio::spawn(async move {
        // The sender lives as long as the proxy.
        let _ = cuts.changed().await;
        let how = cuts.borrow().1;
        match how {
            ConnectionCut::Reset => drop(sockopt::set_socket_linger(&socket, Some(Duration::ZERO))),
            ConnectionCut::Closed => drop(shutdown(&socket, Shutdown::Both)),
            ConnectionCut::Said => {}
        }
        how
    });
    let serving = tokio::spawn(relay(client, server, Arc::clone(&faults)));
    let stop = serving.abort_handle();
    let cutting = cut.abort_handle();
    let watched = tokio::spawn(async move {
        if cut.await.is_ok_and(|how| how != ConnectionCut::Said) {
            stop.abort();
        }
    });
    let _ = serving.await;
    cutting.abort();
    let _ = watched.await;
}

async fn relay(
    client: TcpStream,
    server: Arc<UpstreamServer>,
    faults: Arc<ProxyState>,
) -> io::Result<()> {
    let mut goes = faults.goes.subscribe();
    pass(&mut goes).await;
    let mut client = server.acceptor.accept(client).await?;
    let (head, mut body) = read_head(&mut client).await?;
    let head = String::from_utf8_lossy(&head).into_owned();
    let missing = content_length(&head).saturating_sub(body.len());
    let mut rest = vec![0; missing];
    client.read_exact(&mut rest).await?;
    body.extend(rest);
    let mut words = head.split(' ');
    let asked = ApiRequest {
        method: words.next().unwrap_or_default().to_owned(),
        path: words.next().unwrap_or_default().to_owned(),
        body: body.clone(),
    };
    if let Some(refusal) = faults.ask(asked) {
        client.write_all(answer(refusal).as_bytes()).await?;
        return client.shutdown().await;
    }
    pass(&mut goes).await;
    let upstream = TcpStream::connect(&server.address).await?;
    upstream.set_nodelay(true)?;
    let host = server.address.split(':').next().unwrap_or_default().to_owned();
    let name = ServerName::try_from(host).map_err(io::Error::other)?;
    let mut upstream = server.connector.connect(name, upstream).await?;
    let is_stream = header(&head, "upgrade").is_some();
    upstream.write_all(close_after_request(&head, is_stream).as_bytes()).await?;
    upstream.write_all(&body).await?;
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(upstream);
    let up = tokio::spawn(copy(from_client, to_server, faults.goes.subscribe()));
    let result = forward_response(from_server, to_client, &faults, is_stream).await;
    up.abort();
    result
}

/// Waits until forwarding is enabled.
async fn pass(goes: &mut watch::Receiver<bool>) {
    let _ = goes.wait_for(|goes| *goes).await;
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut goes: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; AT_ONCE];
    loop {
        let count = from.read(&mut buffer).await?;
        pass(&mut goes).await;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}

/// Forwards the server's response.
async fn forward_response(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    faults: &ProxyState,
    is_stream: bool,
) -> io::Result<()> {
    let mut buffer = vec![0; AT_ONCE];
    let mut goes = faults.goes.subscribe();
    let cuts = faults.cuts.subscribe();
    let mut frames = FrameParser::default();
    loop {
        if cuts.has_changed().unwrap_or(true) && (!is_stream || frames.is_between()) {
            if is_stream {
                to.write_all(&GOODBYE).await?;
            }
            return to.shutdown().await;
        }
        let Ok(read) = tokio::time::timeout(LOOK, from.read(&mut buffer)).await else { continue };
        let count = read?;
        pass(&mut goes).await;
        let delay = *faults.delay.lock().expect("no holder panics");
        tokio::time::sleep(delay).await;
        if count == 0 {
            return to.shutdown().await;
        }
        frames.push(&buffer[..count]);
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}

/// Parser state of a response head followed by frames.
#[derive(Default)]
struct FrameParser {
    /// Bytes so far of the response head, or of a frame header.
    head: Vec<u8>,
    is_stream: bool,
    /// Remaining bytes of the payload.
    payload: usize,
}

impl FrameParser {
    fn is_between(&self) -> bool {
        self.is_stream && self.head.is_empty() && self.payload == 0
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while let Some((&first, rest)) = bytes.split_first() {
            if self.payload > 0 {
                let count = self.payload.min(bytes.len());
                self.payload -= count;
                bytes = &bytes[count..];
                continue;
            }
            self.head.push(first);
            bytes = rest;
            if !self.is_stream {
                if self.head.ends_with(b"\r\n\r\n") {
                    self.is_stream = true;
                    self.head.clear();
                }
            } else if let Some(payload) = self.payload() {
                self.payload = payload;
                self.head.clear();
            }
        }
    }

    /// Returns the length of the payload, once the header is complete.
    fn payload(&self) -> Option<usize> {
        let length = usize::from(*self.head.get(1)? & 0x7f);
        let more = match length {
            126 => self.head.get(2..4)?,
            127 => self.head.get(2..10)?,
            _ => return Some(length),
        };
        Some(more.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
    }
}

async fn read_head(client: &mut (impl AsyncRead + Unpin)) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut read = Vec::new();
    loop {
        if let Some(at) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let body = read.split_off(at + 4);
            return Ok((read, body));
        }
        if client.read_buf(&mut read).await? == 0 || read.len() > MAX_HEAD {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

fn content_length(head: &str) -> usize {
    header(head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0)
}

/// Returns the head of a request with `Connection: close`, unless it is upgraded to a stream.
fn close_after_request(head: &str, is_stream: bool) -> String {
    if is_stream {
        return head.to_owned();
    }
    let is_other = |line: &&str| !line.to_ascii_lowercase().starts_with("connection:");
    let lines = head.trim_end().lines().filter(is_other);
    let lines: String = lines.map(|line| format!("{line}\r\n")).collect();
    format!("{lines}Connection: close\r\n\r\n")
}

fn answer(refusal: ErrorResponse) -> String {
    let ErrorResponse { status, retry_after } = refusal;
    let details =
        retry_after.map(|after| format!(",\"details\":{{\"retryAfterSeconds\":{after}}}"));
    let body = format!(
        "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"status\":\"Failure\",\
         \"message\":\"the test says so\",\"reason\":\"Test\",\"code\":{status}{}}}",
        details.unwrap_or_default()
    );
    let after = retry_after.map(|after| format!("Retry-After: {after}\r\n")).unwrap_or_default();
    format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n{after}\r\n{body}",
        body.len()
    )
}
