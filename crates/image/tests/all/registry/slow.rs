//! Slow and stalling servers.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use oci_hooks_image::{MinRate, RegistryError};
use oci_hooks_testsupport::http::{Gate, WebResponse, WebServer};
use oci_hooks_testsupport::program::DEADLINE;

use crate::registry::setup::{MockImage, Puller, chain, login, random_bytes, read};

/// Serves an image, but only a few bytes of its layer until the gate opens.
fn serve_stuck(content: &MockImage, gate: &Gate) -> WebServer {
    let (content, gate) = (content.clone(), gate.clone());
    let layer = content.layer_path(0);
    WebServer::start(move |request| {
        let answer = content.answer(request);
        if request.path == layer {
            WebResponse { held: Some((10, gate.clone())), ..answer }
        } else {
            answer
        }
    })
}

#[test]
fn stalled_layer_of_three_images_does_not_block_other_pulls() {
    let content = MockImage::new(&[&random_bytes(2_000_000), b"b"]);
    let server = content.serve();
    let mut puller = Puller::new();
    // Timeouts longer than the test.
    puller.options.idle_timeout = DEADLINE * 2;
    puller.options.min_rate = MinRate { bytes_per_second: 0, ..MinRate::default() };
    let gates = [Gate::default(), Gate::default(), Gate::default()];
    let hostile: Vec<_> = gates.iter().map(|gate| serve_stuck(&content, gate)).collect();
    thread::scope(|scope| {
        for server in &hostile {
            let (puller, address) = (&puller, server.address());
            scope.spawn(move || {
                puller.pull_beside_others(&format!("{address}/test/image")).unwrap()
            });
        }
        gates.iter().for_each(Gate::wait_until_reached);
        let (done, pulled) = mpsc::channel();
        let (puller, address) = (&puller, server.address());
        let name = format!("{address}/test/image");
        scope.spawn(move || drop(done.send(puller.pull_beside_others(&name))));
        let image = pulled.recv_timeout(DEADLINE);
        gates.iter().for_each(Gate::open);
        assert_eq!(read(&image.expect("it waits for nobody").unwrap(), 0), random_bytes(2_000_000));
    });
    assert_eq!(puller.layers(), 2);
}

#[test]
fn stuck_pull_is_overtaken_by_one_waiter() {
    let content = MockImage::new(&[&random_bytes(20_000)]);
    let gate = Gate::default();
    let path = content.layer_path(0);
    let server = {
        let (content, gate, layer) = (content.clone(), gate.clone(), path.clone());
        let count = AtomicUsize::new(0);
        WebServer::start(move |request| match content.answer(request) {
            answer if request.path == layer && count.fetch_add(1, Ordering::SeqCst) == 0 => {
                WebResponse { held: Some((10, gate.clone())), ..answer }
            }
            answer => answer,
        })
    };
    let mut puller = Puller::new();
    puller.options.idle_timeout = DEADLINE * 2;
    // Longer than everything but the gate.
    puller.options.min_rate = MinRate { bytes_per_second: 1000, over: Duration::from_secs(15) };
    let name = format!("{}/test/image", server.address());
    thread::scope(|scope| {
        let first = scope.spawn(|| puller.pull_beside_others(&name));
        gate.wait_until_reached();
        let (done, pulled) = mpsc::channel();
        for _ in 0..3 {
            let (puller, name, done) = (&puller, &name, done.clone());
            scope.spawn(move || drop(done.send(puller.pull_beside_others(name))));
        }
        let images: Vec<_> = (0..3).map(|_| pulled.recv_timeout(DEADLINE)).collect();
        let asked = server.requests().iter().filter(|request| request.path == path).count();
        gate.open();
        let first = first.join().unwrap().unwrap();
        for image in images {
            let image = image.expect("it does not wait for the first one").unwrap();
            assert_eq!(image.layers, first.layers);
        }
        assert_eq!(asked, 2, "by the one that is stuck and one other");
    });
    assert_eq!(puller.layers(), 1);
}

#[test]
fn waiter_reuses_the_layer_of_a_progressing_pull() {
    let content = MockImage::new(&[&random_bytes(200_000)]);
    let server = {
        let (content, layer) = (content.clone(), content.layer_path(0));
        WebServer::start(move |request| match content.answer(request) {
            answer if request.path == layer => {
                WebResponse { pace: Some(Duration::from_millis(25)), ..answer }
            }
            answer => answer,
        })
    };
    let mut puller = Puller::new();
    // The layer takes five seconds, with progress four times a second.
    puller.options.min_rate = MinRate { bytes_per_second: 1, over: Duration::from_secs(3) };
    let name = format!("{}/test/image", server.address());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| puller.pull_beside_others(&name).unwrap());
        }
    });
    let path = content.layer_path(0);
    assert_eq!(server.requests().iter().filter(|request| request.path == path).count(), 1);
}

/// Serves an image to clients with a token, and trickles the response of one path.
fn serve_trickling(content: &MockImage, slow: &str) -> WebServer {
    let (content, slow) = (content.clone(), slow.to_owned());
    let address = Arc::<std::sync::OnceLock<String>>::default();
    let server = WebServer::start({
        let address = Arc::clone(&address);
        move |request| {
            let path = request.path.split('?').next().unwrap();
            let answer = if path == "/token" {
                // The unused field makes the response large enough to trickle.
                WebResponse::ok(format!("{{\"token\":\"t\",\"x\":\"{}\"}}", "x".repeat(100_000)))
            } else if path == "/v2/" || request.header("authorization") == Some("Bearer t") {
                content.answer(request)
            } else {
                let realm = format!("http://{}/token", address.get().unwrap());
                WebResponse::status(401)
                    .with("www-authenticate", format!("Bearer realm=\"{realm}\""))
            };
            let pace = (path == slow).then_some(Duration::from_millis(200));
            WebResponse { pace, ..answer }
        }
    });
    address.set(server.address()).unwrap();
    server
}

/// Returns an image whose parts are all large enough to trickle, and their paths.
fn large_image() -> (MockImage, [String; 4]) {
    let mut content = MockImage::new(&[&random_bytes(100_000)]);
    content.config.extend(vec![b' '; 100_000]);
    content.manifest["config"] = crate::registry::setup::descriptor(
        crate::registry::setup::media_type::OCI_CONFIG,
        &content.config,
    );
    content.manifest["annotations"] = serde_json::json!({ "x": "x".repeat(100_000) });
    let config = content.manifest["config"]["digest"].as_str().unwrap().to_owned();
    let paths = [
        "/token".to_owned(),
        "/v2/test/image/manifests/latest".to_owned(),
        format!("/v2/test/image/blobs/{config}"),
        content.layer_path(0),
    ];
    (content, paths)
}

#[test]
fn trickling_server_is_an_error_with_its_speed() {
    let (content, paths) = large_image();
    for path in paths {
        let server = serve_trickling(&content, &path);
        let mut puller = Puller::with_login(&server.address(), "a", "a");
        // A busy machine may stop a server for a moment: all but the slow path is much faster.
        puller.options.min_rate =
            MinRate { bytes_per_second: 20_000, over: Duration::from_secs(3) };
        puller.options.hint =
            |error| matches!(error, RegistryError::TooSlow { .. }).then_some("or lower the limit");
        let said = chain(&puller.pull(&server.address()).unwrap_err());
        let address = server.address();
        let start = format!("{address} sends {address}/test/image too slowly: ");
        assert!(said.contains(&start), "{path}: {said}");
        assert!(said.contains(" s, expected at least 20000 bytes/s: "), "{said}");
        assert!(said.ends_with("; or lower the limit"), "{said}");
        // A layer that was begun is resumed.
        let retries = if path == content.layer_path(0) { 2 } else { 0 };
        assert_eq!(puller.seen.count("retry"), retries, "{path}");
        assert_eq!(puller.layers(), 0);
    }
}

#[test]
fn pull_that_exceeds_its_time_limit_is_aborted() {
    let (content, paths) = large_image();
    for path in paths {
        let server = serve_trickling(&content, &path);
        let mut puller = Puller::new();
        puller.credentials = login(&server.address(), "a", "a");
        puller.options.max_time = Duration::from_millis(1500);
        let said = chain(&puller.pull(&server.address()).unwrap_err());
        let start = format!("{}/test/image is not complete after 1 s", server.address());
        assert!(said.contains(&start), "{path}: {said}");
        assert_eq!(puller.seen.count("retry"), 0, "{path}: there is no time left");
    }
}

/// Answers each connection with these bytes, and then with `x` without end.
fn serve_endlessly(start: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // The thread ends with the test program.
    thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let _ = connection.read(&mut [0; 1000]);
                let _ = connection.write_all(start);
                while connection.write_all(b"x").is_ok() {
                    thread::park_timeout(Duration::from_millis(20));
                }
            });
        }
    });
    address
}

#[test]
fn endless_headers_are_aborted() {
    let address = serve_endlessly(b"HTTP/1.1 200 OK\r\nx: ");
    let mut puller = Puller::new();
    puller.options.idle_timeout = Duration::from_millis(300);
    let said = chain(&puller.pull(&address.to_string()).unwrap_err());
    assert!(said.contains(&format!("timed out waiting for {address}")), "{said}");
}

#[test]
fn endless_handshake_is_aborted() {
    // Header of a TLS record of 16 KiB.
    let address = serve_endlessly(b"\x16\x03\x03\x40\x00");
    let mut puller = Puller::new();
    puller.options.connect_timeout = Duration::from_millis(300);
    puller.options.idle_timeout = Duration::from_millis(300);
    let said = chain(&puller.pull(&address.to_string()).unwrap_err());
    assert!(said.contains(&format!("timed out waiting for {address}")), "{said}");
}
