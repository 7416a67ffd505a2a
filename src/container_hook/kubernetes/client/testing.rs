//! A server that answers as a test says, on a port of its own.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kube::Config;

use super::cluster::{Cluster, RetryPolicy, runtime};

/// What the server does with one call.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A code, further headers, each with its line end, and a body.
    Answer(u16, &'static str, String),
    /// The body of the request comes back with this code, as a made object does.
    Echo(u16),
    /// The call is lost: the connection is closed without an answer.
    Close,
    /// The answer never comes.
    Silence,
}

/// What was called: the line of the request, and its body.
pub type Calls = Arc<Mutex<Vec<(String, String)>>>;

pub(in crate::container_hook::kubernetes) fn answer(code: u16, body: &str) -> Reply {
    Reply::Answer(code, "", body.to_owned())
}

/// Returns a cluster whose API server gives these replies, one after the other, and what it was asked.
pub fn cluster(replies: Vec<Reply>) -> (Cluster, Calls) {
    let mut replies = replies.into_iter();
    answering(move |_, _| replies.next().unwrap_or_else(|| answer(418, "no more replies")))
}

/// Returns a cluster whose API server is asked for each reply with the line of the request and its body.
pub fn answering(reply: impl FnMut(&str, &str) -> Reply + Send + 'static) -> (Cluster, Calls) {
    let (server, calls) = serve(reply);
    (at(&server), calls)
}

/// Returns a cluster whose API server is at a URL.
pub fn at(server: &str) -> Cluster {
    let policy = RetryPolicy {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(4),
        limit: Duration::from_secs(20),
        answer: Duration::from_millis(500),
    };
    let mut config = Config::new(server.parse().unwrap());
    config.default_retry = false;
    let cluster = Cluster::new(runtime().unwrap(), config, "ns".to_owned()).unwrap();
    cluster.with_retries(policy)
}

fn serve(mut reply: impl FnMut(&str, &str) -> Reply + Send + 'static) -> (String, Calls) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let calls = Calls::default();
    let noted = Arc::clone(&calls);
    thread::spawn(move || {
        // Those that no answer is given to stay open.
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let Some((line, body)) = read(&stream) else { continue };
            noted.lock().unwrap().push((line.clone(), body.clone()));
            let reply = reply(&line, &body);
            let (code, headers, text) = match reply {
                Reply::Answer(code, headers, text) => (code, headers, text),
                Reply::Echo(code) => (code, "", body),
                Reply::Close => continue,
                Reply::Silence => {
                    silent.push(stream);
                    continue;
                }
            };
            let length = text.len();
            let head = format!("HTTP/1.1 {code} Code\r\nConnection: close\r\n{headers}");
            // The caller may have given up.
            let _ = write!(&stream, "{head}Content-Length: {length}\r\n\r\n{text}");
        }
    });
    (url, calls)
}

fn read(stream: &TcpStream) -> Option<(String, String)> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let first = first.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    (!first.is_empty()).then(|| (first, String::from_utf8(body).unwrap()))
}
