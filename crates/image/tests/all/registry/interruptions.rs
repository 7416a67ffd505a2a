//! Servers that fail temporarily or permanently, and mirrors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oci_hooks_image::{Platform, PullRequest, RegistryClient, RegistryOptions, pull};
use oci_hooks_testsupport::http::{WebRequest, WebResponse, WebServer};
use oci_hooks_testsupport::program::DEADLINE;

use crate::registry::setup::{MockImage, Puller, chain, random_bytes, read};

/// Serves an image whose first layer's responses are changed by a function, which gets their
/// number.
fn serve_failing(
    content: &MockImage,
    fail: impl Fn(&WebRequest, usize, WebResponse) -> WebResponse + Send + Sync + 'static,
) -> WebServer {
    let content = content.clone();
    let count = AtomicUsize::new(0);
    let layer = content.layer_path(0);
    WebServer::start(move |request| {
        let answer = content.answer(request);
        if request.path == layer {
            fail(request, count.fetch_add(1, Ordering::SeqCst), answer)
        } else {
            answer
        }
    })
}

#[test]
fn interrupted_download_resumes() {
    let content = MockImage::new(&[&random_bytes(2_000_000), b"b"]);
    let server = serve_failing(&content, |_, count, mut answer| {
        answer.cut = [Some(700_001), Some(0), None][count.min(2)];
        answer
    });
    let puller = Puller::new();
    let image = puller.pull(&server.address()).unwrap();
    assert_eq!(read(&image, 0), random_bytes(2_000_000));
    assert_eq!(puller.seen.count("retry"), 2);
    let total: usize = content.layers.iter().map(Vec::len).sum();
    assert_eq!(puller.seen.count("bytes"), total as u64);
    let ranges: Vec<_> = server
        .requests()
        .iter()
        .filter(|request| request.path == content.layer_path(0))
        .map(|request| request.header("range").map(str::to_owned))
        .collect();
    let resumed = Some("bytes=700001-".to_owned());
    assert_eq!(ranges, [None, resumed.clone(), resumed]);
}

#[test]
fn server_without_ranges_restarts_the_download() {
    let content = MockImage::new(&[&random_bytes(2_000_000)]);
    let whole = content.layers[0].clone();
    let server = serve_failing(&content, move |_, count, _| WebResponse {
        cut: (count == 0).then_some(900_000),
        ..WebResponse::ok(whole.clone())
    });
    let puller = Puller::new();
    let image = puller.pull(&server.address()).unwrap();
    assert_eq!(read(&image, 0), random_bytes(2_000_000));
}

#[test]
fn wrong_range_is_rejected() {
    let content = MockImage::new(&[&random_bytes(2_000_000)]);
    let server = serve_failing(&content, |_, count, mut answer| {
        if count == 0 {
            answer.cut = Some(900_000);
        } else {
            answer.headers = vec![("content-range".to_owned(), "bytes 5-9/10".to_owned())];
        }
        answer
    });
    let puller = Puller::new();
    assert!(puller.pull(&server.address()).is_err());
    assert_eq!(puller.layers(), 0);
}

#[test]
fn permanent_errors_are_reported() {
    let content = MockImage::new(&[&random_bytes(100_000)]);
    let server = serve_failing(&content, |_, _, mut answer| {
        answer.cut = Some(1000);
        answer
    });
    let puller = Puller::new();
    let error = chain(&puller.pull(&server.address()).unwrap_err());
    assert!(error.contains(&format!("cannot reach {}", server.address())), "{error}");
    assert_eq!(puller.seen.count("retry"), 2);
    assert_eq!(puller.layers(), 0);
}

#[test]
fn overloaded_server_is_retried() {
    let content = MockImage::new(&[b"a"]);
    for status in [429, 500, 502, 503, 504] {
        let server = serve_failing(&content, move |_, count, answer| match count {
            0 => WebResponse::status(status).with("retry-after", "0"),
            _ => answer,
        });
        Puller::new().pull(&server.address()).unwrap();
    }
}

#[test]
fn errors_contain_a_hint() {
    for (response, message) in [
        (WebResponse::status(404), "test/image:latest not found in 127.0.0.1"),
        (WebResponse::status(403), "authentication required for"),
        (
            WebResponse::status(429).with("retry-after", "3600"),
            "exceeded, try again in 3600 seconds: log in, use a mirror, or wait",
        ),
        (
            WebResponse {
                status: 418,
                ..WebResponse::ok(r#"{"errors":[{"code":"X","message":"tea"}]}"#)
            },
            "answered 418 to the request for test/image:latest: tea",
        ),
        (WebResponse { status: 400, ..WebResponse::ok("<html>") }, "answered 400 to"),
        (
            WebResponse::status(401).with("www-authenticate", "Negotiate"),
            "unsupported authentication scheme: expected Basic or Bearer",
        ),
    ] {
        let server = WebServer::start(move |request| match request.path.as_str() {
            "/v2/" => WebResponse::status(200),
            _ => response.clone(),
        });
        let error = chain(&Puller::new().pull(&server.address()).unwrap_err());
        assert!(error.contains(message), "{error}");
    }
    let error = Puller::new().pull("127.0.0.1:1").unwrap_err();
    assert!(chain(&error).contains("cannot reach 127.0.0.1:1: "), "{}", chain(&error));
}

#[test]
fn layer_interrupted_by_a_mirror_comes_from_the_registry() {
    let content = MockImage::new(&[&random_bytes(100_000)]);
    let server = content.serve();
    let mirror = {
        let (content, layer) = (content.clone(), content.layer_path(0));
        WebServer::start(move |request| match content.answer(request) {
            answer if request.path == layer => WebResponse { cut: Some(10), ..answer },
            answer => answer,
        })
    };
    let mut puller = Puller::new();
    let mirrors = vec![mirror.address()];
    let options = RegistryOptions { mirrors, ..RegistryOptions::default() };
    puller.options.registries.insert(server.address(), options);
    puller.pull(&server.address()).unwrap();
    assert_eq!(server.requests().last().unwrap().path, content.layer_path(0));
}

#[test]
fn pull_reports_progress_while_the_server_is_silent() {
    let content = MockImage::new(&[b"a"]);
    let mut puller = Puller::new();
    puller.options.idle_timeout = DEADLINE * 2;
    let server = {
        let (content, layer, seen) = (content.clone(), content.layer_path(0), puller.seen.clone());
        WebServer::start(move |request| {
            let deadline = Instant::now() + DEADLINE;
            while request.path == layer && seen.count("waiting") == 0 && Instant::now() < deadline {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            content.answer(request)
        })
    };
    puller.pull(&server.address()).unwrap();
    assert!(puller.seen.count("waiting") > 0);
}

#[test]
fn local_registry_is_reached_without_the_proxy() {
    let server = MockImage::new(&[b"a"]).serve();
    let mut puller = Puller::new();
    puller.options.proxy = Some("http://127.0.0.1:1".to_owned());
    puller.pull(&server.address()).unwrap();
}

#[test]
fn mirrors_are_asked_before_the_registry() {
    let content = MockImage::new(&[b"a", b"b"]);
    let server = content.serve();
    let mirror = {
        let (content, missing) = (content.clone(), content.layer_path(1));
        WebServer::start(move |request| {
            let mut request = request.clone();
            request.path = request.path.replace("/v2/cache/", "/v2/");
            if request.path == missing {
                WebResponse::status(404)
            } else {
                content.answer(&request)
            }
        })
    };
    let mut puller = Puller::new();
    let mirrors = vec!["127.0.0.1:1".to_owned(), format!("{}/cache", mirror.address())];
    let options = RegistryOptions { mirrors, ..RegistryOptions::default() };
    puller.options.registries.insert(server.address(), options);
    puller.pull(&server.address()).unwrap();
    let asked: Vec<_> =
        server.requests().into_iter().map(|request| request.path).filter(|p| p != "/v2/").collect();
    assert_eq!(asked, [content.layer_path(1)]);
    assert!(mirror.requests().iter().all(|request| request.header("authorization").is_none()));
}

#[test]
fn error_of_an_unreachable_registry_has_the_answers_of_its_mirrors() {
    let mirror = WebServer::start(|_| WebResponse::status(404));
    let mut puller = Puller::new();
    let mirrors = vec!["127.0.0.1:1".to_owned(), mirror.address()];
    let options = RegistryOptions { mirrors, ..RegistryOptions::default() };
    // Nothing listens on these ports.
    puller.options.registries.insert("127.0.0.1:2".to_owned(), options);
    let said = chain(&puller.pull("127.0.0.1:2").unwrap_err());
    let absent = format!("not found in {}", mirror.address());
    let parts =
        ["cannot reach 127.0.0.1:1", &absent, "the registry itself: cannot reach 127.0.0.1:2"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn a_registry_that_accepts_no_connection_is_asked_as_often_as_the_client_says() {
    for (attempts, retries) in [(u32::MAX, 2), (2, 1), (1, 0)] {
        let puller = Puller::new();
        let client = RegistryClient::new(puller.options.clone()).unwrap();
        // Nothing listens on port 1.
        let request = PullRequest {
            reference: &"127.0.0.1:1/test/image".parse().unwrap(),
            platform: &Platform::host(),
            credentials: &puller.credentials,
            policy: puller.policy,
            progress: &puller.seen,
        };
        let client = client.with_connect_attempts(attempts);
        let error = pull(&puller.store(), &client, &request).unwrap_err();
        assert!(chain(&error).contains("cannot reach 127.0.0.1:1"), "{}", chain(&error));
        assert_eq!(puller.seen.count("retry"), retries);
    }
}
