//! Requests to servers that are not as they should be.

use serde_json::json;
use ureq::tls::{PemItem, parse_pem};

use super::fake::{Fake, Reply};
use super::*;
use crate::sys::error::chain;

fn client() -> Http {
    Http::new(&HttpOptions::default()).unwrap()
}

fn status(error: &HttpError) -> u16 {
    match error {
        HttpError::Status { status, .. } => *status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_say_who_asks_and_what_for() {
    let server = Fake::serve(|_| Reply::ok(b"raw \0 bytes"));
    let url = server.url("/a/b?c=d");
    assert_eq!(client().get(&url, Some("T0KEN"), 100).unwrap(), b"raw \0 bytes");
    client().post_json(&url, Some("T0KEN"), &json!({"a": null})).unwrap();
    let seen = server.seen();
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("GET", "/a/b?c=d"));
    assert_eq!((seen[1].method.as_str(), seen[1].path.as_str()), ("POST", "/a/b?c=d"));
    for request in &seen {
        assert_eq!(request.header("authorization"), Some("Bearer T0KEN"));
        assert_eq!(request.header("accept"), Some("application/json"));
    }
    assert_eq!(seen[1].header("content-type"), Some("application/json"));
    assert_eq!(seen[1].body, br#"{"a":null}"#);
}

#[test]
fn refusals_are_told_without_what_is_secret() {
    let server = Fake::serve(|request| match request.path.split('?').next().unwrap() {
        "/json" => Reply::status(401, br#"{"error":"Authentication failed","details":""}"#),
        "/html" => Reply::status(404, b"<html>no</html>"),
        _ => Reply::status(400, b"invalid\x07 request\nsecond line"),
    });
    for (path, expected) in [
        ("/json?sig=S3CRET", "/json: 401: Authentication failed"),
        ("/html", "/html: 404"),
        ("/text", "/text: 400: invalid request"),
    ] {
        let error = client().get(&server.url(path), Some("S3CRET"), 10).unwrap_err();
        assert_eq!(error.to_string(), format!("GET {}", server.url(expected)));
        assert!(!error.is_transient());
    }
    let error = client().get("http://me:S3CRET@h/x?S3CRET#S3CRET", None, 10).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid address \"http://h/x\": expected http:// or https:// without a login"
    );
    let proxy = Proxy { http_proxy: "http://me:S3CRET@ h".into(), ..Proxy::default() };
    let error = Http::new(&HttpOptions { proxy, ..HttpOptions::default() }).unwrap_err();
    assert_eq!(error.to_string(), "invalid proxy address \"http://***@ h\"");
}

#[test]
fn what_may_go_away_by_itself_is_tried_again() {
    let retry = |attempts| Retry { attempts, pause: Duration::ZERO };
    for trouble in [500, 503, 429, 0] {
        let mut count = 0;
        let server = Fake::serve(move |_| {
            count += 1;
            match (count, trouble) {
                (3.., _) => Reply::ok(b"at last"),
                (_, 0) => Reply::cut(),
                (_, status) => Reply::status(status, b""),
            }
        });
        let get = || client().get(&server.url("/"), None, 100);
        assert!(retry(2).run(get).unwrap_err().is_transient(), "{trouble}");
        assert_eq!(retry(5).run(get).unwrap(), b"at last");
        assert_eq!(server.seen().len(), 3);
    }
    let server = Fake::serve(|_| Reply::status(401, b""));
    let error = retry(5).run(|| client().get(&server.url("/"), None, 1)).unwrap_err();
    assert_eq!((status(&error), server.seen().len()), (401, 1));
    let url = server.url("/");
    drop(server);
    let mut tries = 0;
    let error = retry(5).run(|| {
        tries += 1;
        client().get(&url, None, 1)
    });
    assert!(matches!(error, Err(HttpError::Unreachable { .. })), "{error:?}");
    assert_eq!(tries, 5);
}

#[test]
fn an_answer_has_a_limit_and_must_be_whole() {
    let server = Fake::serve(|request| match request.path.as_str() {
        "/short" => Reply::ok(b"1234").announce(10),
        _ => Reply::ok(b"12345"),
    });
    assert_eq!(client().get(&server.url("/"), None, 5).unwrap(), b"12345");
    let error = client().get(&server.url("/"), None, 4).unwrap_err();
    assert!(matches!(error, HttpError::TooLarge { limit_bytes: 4, .. }), "{error:?}");
    let error = client().get(&server.url("/short"), None, 100).unwrap_err();
    assert!(error.is_transient(), "{error:?}");
}

#[test]
fn a_token_stays_with_its_origin() {
    let other = Fake::serve(|_| Reply::ok(b"there"));
    let (same, away) = ("/new".to_owned(), other.url("/away?x"));
    let server = Fake::serve(move |request| match request.path.as_str() {
        "/same" => Reply::redirect(302, &same),
        "/away" => Reply::redirect(307, &away),
        "/loop" => Reply::redirect(301, "/loop"),
        "/file" => Reply::redirect(302, "file:///etc/passwd"),
        _ => Reply::ok(b"here"),
    });
    let get = |path: &str| client().get(&server.url(path), Some("T0KEN"), 100);
    assert_eq!(get("/same").unwrap(), b"here");
    assert_eq!(server.seen()[1].header("authorization"), Some("Bearer T0KEN"));
    assert_eq!(get("/away").unwrap(), b"there");
    assert_eq!(other.seen()[0].header("authorization"), None);
    assert!(matches!(get("/loop"), Err(HttpError::Redirect { .. })));
    assert!(matches!(get("/file"), Err(HttpError::Redirect { .. })));
    // What is posted is for whom it was posted to.
    let posted = client().post_json(&server.url("/away"), Some("T0KEN"), &json!({}));
    assert_eq!(status(&posted.unwrap_err()), 307);
    assert_eq!(other.seen().len(), 1);
}

#[test]
fn a_body_begins_where_it_is_wanted_if_the_server_can() {
    let server = Fake::serve(|request| match (&*request.path, request.header("range")) {
        ("/knows", Some("bytes=3-")) => {
            Reply::status(206, b"456").with("content-range", "bytes 3-5/6")
        }
        ("/lies", Some(_)) => Reply::status(206, b"x").with("content-range", "bytes 1-1/6"),
        _ => Reply::ok(b"123456"),
    });
    for (path, start, begins, expected) in
        [("/knows", 0, 0, "123456"), ("/knows", 3, 3, "456"), ("/ignores", 3, 0, "123456")]
    {
        let mut body = client().open(&server.url(path), Some("T0KEN"), start).unwrap();
        let mut text = String::new();
        body.reader.read_to_string(&mut text).unwrap();
        assert_eq!((body.start, body.total, text.as_str()), (begins, Some(6), expected));
    }
    assert!(client().open(&server.url("/lies"), None, 3).is_err());
}

#[test]
fn proxies_are_used_but_for_those_on_the_list() {
    let proxy = Fake::serve(|_| Reply::status(403, b""));
    let get = |no_proxy: &str, url: &str| {
        let (http_proxy, no_proxy) = (proxy.url(""), no_proxy.to_owned());
        let proxy = Proxy { http_proxy, no_proxy, https_proxy: String::new() };
        let client = Http::new(&HttpOptions { proxy, ..HttpOptions::default() }).unwrap();
        chain(&client.get(url, None, 10).unwrap_err())
    };
    let url = "http://garm.invalid/x";
    let error = get("", url);
    assert!(error.starts_with("GET http://garm.invalid/x: ") && error.contains("403"), "{error}");
    assert!(!get("a, .invalid", url).contains("403"));
    assert_eq!(proxy.seen()[0].method, "CONNECT");
    // This machine is reached directly whatever is on the list.
    let server = Fake::serve(|_| Reply::status(404, b"direct"));
    assert!(get("", &server.url("/")).ends_with("404: direct"));
}

#[test]
fn what_is_no_certificate_is_refused() {
    for pem in ["x", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
        let options = HttpOptions { ca_pem: pem.into(), ..HttpOptions::default() };
        assert!(matches!(Http::new(&options), Err(HttpError::Certificates { .. })), "{pem}");
    }
}

#[test]
fn a_server_that_falls_silent_is_not_waited_for() {
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let server = Fake::serve(move |_| {
        let _ = is_over.recv();
        Reply::cut()
    });
    let options = HttpOptions::default();
    let client = Http::within(&options, CONNECT_TIMEOUT, Duration::from_millis(50)).unwrap();
    let error = client.get(&server.url("/"), None, 1).unwrap_err();
    assert!(matches!(error, HttpError::Timeout { .. }), "{error:?}");
    assert!(error.is_transient());
    drop(over);
}

/// Answers one connection with TLS, by the certificate for `localhost`.
fn serve_tls() -> (u16, thread::JoinHandle<()>) {
    let items = parse_pem(include_bytes!("../../../tests/data/tls/server.pem"));
    let (mut chain, mut key) = (Vec::new(), None);
    for item in items.map(Result::unwrap) {
        match item {
            PemItem::Certificate(found) => chain.push(found.der().to_vec().into()),
            PemItem::PrivateKey(found) => key = Some(found.der().to_vec()),
            _ => {}
        }
    }
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.unwrap());
    let config = rustls::ServerConfig::builder_with_provider(
        rustls::crypto::ring::default_provider().into(),
    );
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = config.with_single_cert(chain, key.into()).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move || {
        use std::io::Write as _;
        let (stream, _) = listener.accept().unwrap();
        let connection = rustls::ServerConnection::new(config.into()).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, stream);
        // Who does not trust it goes away.
        if stream.read(&mut [0; 4096]).is_ok() {
            stream.write_all(b"HTTP/1.1 200 x\r\ncontent-length: 2\r\n\r\nok").unwrap();
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    };
    (port, thread::spawn(serve))
}

#[test]
fn certificates_are_trusted_if_they_are_named() {
    let authority = include_str!("../../../tests/data/tls/ca.pem");
    for (ca_pem, is_trusted) in [("", false), (authority, true)] {
        let (port, server) = serve_tls();
        let options = HttpOptions { ca_pem: ca_pem.into(), ..HttpOptions::default() };
        let result =
            Http::new(&options).unwrap().get(&format!("https://localhost:{port}/"), None, 10);
        match result {
            Ok(content) => assert!(is_trusted && content == b"ok"),
            Err(error) => {
                assert!(!is_trusted && matches!(error, HttpError::Tls { .. }), "{error:?}");
                assert!(!error.is_transient());
            }
        }
        server.join().unwrap();
    }
}

#[test]
fn certificates_of_the_host_stay_trusted() {
    let of_host = rustls_native_certs::load_native_certs().certs.len();
    let authority = include_str!("../../../tests/data/tls/ca.pem");
    match root_certificates(authority).unwrap() {
        RootCerts::Specific(all) => assert_eq!(all.len(), of_host + 1),
        other => panic!("{other:?}"),
    }
}
