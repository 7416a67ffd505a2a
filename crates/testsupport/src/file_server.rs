//! A server on the host that containers must not reach.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::host::TestHost;

/// A server on all addresses of a host, which answers every HTTP request with a file.
pub struct FileServer<'a> {
    host: &'a TestHost,
    pub port: u16,
    is_over: Arc<AtomicBool>,
    answers: JoinHandle<usize>,
}

impl<'a> FileServer<'a> {
    pub fn start(host: &'a TestHost) -> Self {
        let listener = host.enter(|| TcpListener::bind("0.0.0.0:0")).expect("there are ports");
        let port = listener.local_addr().expect("it has an address").port();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let answers = thread::spawn(move || {
            let streams = listener.incoming().take_while(|_| !ends.load(Ordering::Relaxed));
            let mut count = 0;
            for stream in streams {
                count += 1;
                if let Ok(stream) = stream {
                    answer(stream);
                }
            }
            count
        });
        Self { host, port, is_over, answers }
    }

    /// Stops the server, and returns the number of connections.
    pub fn end(self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        let wake = self.host.enter(|| TcpStream::connect(("127.0.0.1", self.port)));
        drop(wake.expect("it listens"));
        self.answers.join().expect("it does not panic")
    }
}

fn answer(mut stream: TcpStream) {
    let Ok(copy) = stream.try_clone() else { return };
    // A client may say nothing.
    let _ = copy.set_read_timeout(Some(Duration::from_secs(20)));
    let lines = BufReader::new(copy).lines().map_while(Result::ok);
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let _ = stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret");
}
