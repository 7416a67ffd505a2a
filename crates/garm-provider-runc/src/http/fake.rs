//! Web server for tests, on loopback.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use oci_hooks_testsupport::http::{WebRequest, WebResponse, WebServer};

type FakeAnswer = dyn FnMut(&WebRequest) -> WebResponse + Send;

/// Server whose answers may depend on earlier requests. Panics when dropped if an answer panicked.
pub struct FakeServer {
    server: WebServer,
    answer: Arc<Mutex<FakeAnswer>>,
}

impl FakeServer {
    /// Starts a server, which runs until it is dropped.
    pub fn serve(answer: impl FnMut(&WebRequest) -> WebResponse + Send + 'static) -> Self {
        Self::serve_on(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    /// Starts a server that accepts the connections of a listener.
    pub fn serve_on(
        listener: TcpListener,
        answer: impl FnMut(&WebRequest) -> WebResponse + Send + 'static,
    ) -> Self {
        let answer: Arc<Mutex<FakeAnswer>> = Arc::new(Mutex::new(answer));
        let shared = Arc::clone(&answer);
        let server = WebServer::start_at(listener, None, move |request| {
            let mut answer = shared.lock().unwrap();
            (*answer)(request)
        });
        FakeServer { server, answer }
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    /// Returns the requests so far.
    pub fn seen_requests(&self) -> Vec<WebRequest> {
        self.server.requests()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        assert!(!self.answer.is_poisoned() || thread::panicking(), "the server panicked");
    }
}

/// Returns a response with any status.
pub fn reply(status: u16, body: impl Into<Vec<u8>>) -> WebResponse {
    WebResponse { status, ..WebResponse::ok(body) }
}

/// Returns a response whose connection is closed after some bytes of the body.
pub fn cut_reply(body: impl Into<Vec<u8>>, cut: usize) -> WebResponse {
    WebResponse { cut: Some(cut), ..WebResponse::ok(body) }
}

/// Makes the server close the connection without a response.
pub fn no_reply() -> WebResponse {
    WebResponse { refused: true, ..WebResponse::default() }
}
