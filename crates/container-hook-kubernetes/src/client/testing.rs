//! A test server with scripted answers on a free port.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kube::Config;

use super::cluster::{ClusterClient, RetryPolicy, runtime};

/// Reaction of the server to one call.
#[derive(Clone, Debug)]
pub enum ScriptedReply {
    /// Status code, further headers with their line ends, and body.
    Answer(u16, &'static str, String),
    /// Answers with this code and the request's body, as if an object was created.
    Echo(u16),
    /// Closes the connection without an answer.
    Close,
    Silence,
}

/// Calls received: request line and body of each.
pub type RecordedCalls = Arc<Mutex<Vec<(String, String)>>>;

pub(crate) fn answer(code: u16, body: &str) -> ScriptedReply {
    ScriptedReply::Answer(code, "", body.to_owned())
}

/// Returns a cluster whose API server gives these replies in order, and the calls it received.
pub fn cluster(replies: Vec<ScriptedReply>) -> (ClusterClient, RecordedCalls) {
    let mut replies = replies.into_iter();
    cluster_with_replies(move |_, _| {
        replies.next().unwrap_or_else(|| answer(418, "no more replies"))
    })
}

/// Returns a cluster whose API server computes each reply from the request line and the body.
pub fn cluster_with_replies(
    reply: impl FnMut(&str, &str) -> ScriptedReply + Send + 'static,
) -> (ClusterClient, RecordedCalls) {
    let (server, calls) = serve(reply);
    (cluster_at(&server), calls)
}

/// Returns a cluster whose API server has this URL.
pub fn cluster_at(server: &str) -> ClusterClient {
    let policy = RetryPolicy {
        first: Duration::from_millis(1),
        longest: Duration::from_millis(4),
        limit: Duration::from_secs(300),
        answer: Duration::from_secs(60),
    };
    let mut config = Config::new(server.parse().unwrap());
    config.default_retry = false;
    let cluster = ClusterClient::new(runtime().unwrap(), config, "ns".to_owned()).unwrap();
    cluster.with_retries(policy)
}

fn serve(
    mut reply: impl FnMut(&str, &str) -> ScriptedReply + Send + 'static,
) -> (String, RecordedCalls) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let calls = RecordedCalls::default();
    let noted = Arc::clone(&calls);
    thread::spawn(move || {
        // Unanswered connections stay open.
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let Some((line, body)) = read(&stream) else { continue };
            noted.lock().unwrap().push((line.clone(), body.clone()));
            let reply = reply(&line, &body);
            let (code, headers, text) = match reply {
                ScriptedReply::Answer(code, headers, text) => (code, headers, text),
                ScriptedReply::Echo(code) => (code, "", body),
                ScriptedReply::Close => continue,
                ScriptedReply::Silence => {
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
