//! Servers that fail for a moment, or for good, and mirrors.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oci_hooks::image::RegistryOptions;

use crate::setup::{Content, Puller, chain, noise, read};
use crate::support::http::{Request, Response, Server};
use crate::support::program::DEADLINE;

/// Serves an image, and something else for the first requests for which the function has it.
fn failing(
    content: &Content,
    fail: impl Fn(&Request, usize, Response) -> Response + Send + Sync + 'static,
) -> Server {
    let content = content.clone();
    let count = AtomicUsize::new(0);
    let layer = content.layer_path(0);
    Server::start(move |request| {
        let answer = content.answer(request);
        if request.path == layer {
            fail(request, count.fetch_add(1, Ordering::SeqCst), answer)
        } else {
            answer
        }
    })
}

#[test]
fn a_broken_connection_is_taken_up_where_it_broke() {
    let content = Content::new(&[&noise(2_000_000), b"b"]);
    let server = failing(&content, |_, count, mut answer| {
        answer.cut = [Some(700_001), Some(0), None][count.min(2)];
        answer
    });
    let puller = Puller::new();
    let image = puller.pull(&server.address()).unwrap();
    assert_eq!(read(&image, 0), noise(2_000_000));
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
fn a_server_without_ranges_is_read_again_from_the_start() {
    let content = Content::new(&[&noise(2_000_000)]);
    let whole = content.layers[0].clone();
    let server = failing(&content, move |_, count, _| Response {
        cut: (count == 0).then_some(900_000),
        ..Response::ok(whole.clone())
    });
    let puller = Puller::new();
    let image = puller.pull(&server.address()).unwrap();
    assert_eq!(read(&image, 0), noise(2_000_000));
}

#[test]
fn another_part_than_the_one_asked_for_is_refused() {
    let content = Content::new(&[&noise(2_000_000)]);
    let server = failing(&content, |_, count, mut answer| {
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
fn trouble_that_does_not_end_is_reported() {
    let content = Content::new(&[&noise(100_000)]);
    let server = failing(&content, |_, _, mut answer| {
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
fn overloaded_servers_are_asked_again() {
    let content = Content::new(&[b"a"]);
    for status in [429, 500, 502, 503, 504] {
        let server = failing(&content, move |_, count, answer| match count {
            0 => Response::status(status).with("retry-after", "0"),
            _ => answer,
        });
        Puller::new().pull(&server.address()).unwrap();
    }
}

#[test]
fn errors_say_what_to_do() {
    for (response, message) in [
        (Response::status(404), "test/image:latest not found in 127.0.0.1"),
        (Response::status(403), "authentication required for"),
        (
            Response::status(429).with("retry-after", "3600"),
            "exceeded, for 3600 seconds: log in, use a mirror, or wait",
        ),
        (
            Response {
                status: 418,
                ..Response::ok(r#"{"errors":[{"code":"X","message":"tea"}]}"#)
            },
            "answered 418 to the request for test/image:latest: tea",
        ),
        (Response { status: 400, ..Response::ok("<html>") }, "answered 400 to"),
        (
            Response::status(401).with("www-authenticate", "Negotiate"),
            "unsupported authentication scheme: expected Basic or Bearer",
        ),
    ] {
        let server = Server::start(move |request| match request.path.as_str() {
            "/v2/" => Response::status(200),
            _ => response.clone(),
        });
        let error = chain(&Puller::new().pull(&server.address()).unwrap_err());
        assert!(error.contains(message), "{error}");
    }
    let error = Puller::new().pull("127.0.0.1:1").unwrap_err();
    assert!(chain(&error).contains("cannot reach 127.0.0.1:1: "), "{}", chain(&error));
}

#[test]
fn a_layer_that_a_mirror_cannot_send_whole_comes_from_the_registry() {
    let content = Content::new(&[&noise(100_000)]);
    let server = content.serve();
    let mirror = {
        let (content, layer) = (content.clone(), content.layer_path(0));
        Server::start(move |request| match content.answer(request) {
            answer if request.path == layer => Response { cut: Some(10), ..answer },
            answer => answer,
        })
    };
    let mut puller = Puller::new();
    let mirrors = vec![mirror.address()];
    let mut options = RegistryOptions::default();
    options.mirrors = mirrors;
    puller.options.registries.insert(server.address(), options);
    puller.pull(&server.address()).unwrap();
    assert_eq!(server.requests().last().unwrap().path, content.layer_path(0));
}

#[test]
fn a_pull_says_that_it_goes_on_while_the_server_does_not_answer() {
    let content = Content::new(&[b"a"]);
    let mut puller = Puller::new();
    puller.options.idle_timeout = DEADLINE * 2;
    let server = {
        let (content, layer, seen) = (content.clone(), content.layer_path(0), puller.seen.clone());
        Server::start(move |request| {
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
fn a_registry_on_this_machine_is_reached_without_the_proxy() {
    let server = Content::new(&[b"a"]).serve();
    let mut puller = Puller::new();
    puller.options.proxy = Some("http://127.0.0.1:1".to_owned());
    puller.pull(&server.address()).unwrap();
}

#[test]
fn mirrors_come_first_and_the_registry_for_what_they_lack() {
    let content = Content::new(&[b"a", b"b"]);
    let server = content.serve();
    let mirror = {
        let (content, missing) = (content.clone(), content.layer_path(1));
        Server::start(move |request| {
            let mut request = request.clone();
            request.path = request.path.replace("/v2/cache/", "/v2/");
            if request.path == missing { Response::status(404) } else { content.answer(&request) }
        })
    };
    let mut puller = Puller::new();
    let mirrors = vec!["127.0.0.1:1".to_owned(), format!("{}/cache", mirror.address())];
    let mut options = RegistryOptions::default();
    options.mirrors = mirrors;
    puller.options.registries.insert(server.address(), options);
    puller.pull(&server.address()).unwrap();
    let asked: Vec<_> =
        server.requests().into_iter().map(|request| request.path).filter(|p| p != "/v2/").collect();
    assert_eq!(asked, [content.layer_path(1)]);
    assert!(mirror.requests().iter().all(|request| request.header("authorization").is_none()));
}
