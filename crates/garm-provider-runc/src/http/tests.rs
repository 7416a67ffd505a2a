//! Requests to misbehaving servers.

use oci_hooks_files::error::chain;
use oci_hooks_testsupport::certificates::TestCertificates;
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use serde_json::json;

use super::fake::{FakeServer, cut_reply, no_reply, reply};
use super::*;

fn client() -> HttpClient {
    HttpClient::new(&HttpOptions::default()).unwrap()
}

fn status(error: &HttpError) -> u16 {
    match error {
        HttpError::Status { status, .. } => *status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_contain_user_agent_and_token() {
    let server = FakeServer::serve(|_| WebResponse::ok(b"raw \0 bytes"));
    let url = server.url("/a/b?c=d");
    assert_eq!(client().get(&url, Some("T0KEN"), 100).unwrap(), b"raw \0 bytes");
    client().post_json(&url, Some("T0KEN"), &json!({"a": null})).unwrap();
    let seen = server.seen_requests();
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("GET", "/a/b?c=d"));
    assert_eq!((seen[1].method.as_str(), seen[1].path.as_str()), ("POST", "/a/b?c=d"));
    for request in &seen {
        assert_eq!(request.header("authorization"), Some("Bearer T0KEN"));
        assert_eq!(request.header("accept"), Some("application/json"));
    }
    assert_eq!(seen[1].header("content-type"), Some("application/json"));
    assert_eq!(seen[1].body, r#"{"a":null}"#);
}

#[test]
fn rejections_are_reported_without_secrets() {
    let server = FakeServer::serve(|request| match request.path.split('?').next().unwrap() {
        "/json" => reply(401, br#"{"error":"Authentication failed","details":""}"#),
        "/html" => reply(404, b"<html>no</html>"),
        _ => reply(400, b"invalid\x07 request\nsecond line"),
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
        "invalid URL \"http://h/x\": expected http:// or https://, without user name and password"
    );
    let proxy = ProxyUrls { http_proxy: "http://me:S3CRET@ h".into(), ..ProxyUrls::default() };
    let error = HttpClient::new(&HttpOptions { proxy, ..HttpOptions::default() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid proxy URL \"http://***@ h\": expected one such as http://proxy.example.com:3128"
    );
}

fn retry<T>(attempts: u32, f: impl FnMut() -> Result<T, HttpError>) -> Result<T, HttpError> {
    HttpRetry { attempts, pause: Duration::ZERO }.run_while(|| true, f)
}

#[test]
fn temporary_errors_are_retried() {
    for trouble in [500, 503, 429, 0] {
        let mut count = 0;
        let server = FakeServer::serve(move |_| {
            count += 1;
            match (count, trouble) {
                (3.., _) => WebResponse::ok(b"at last"),
                (_, 0) => no_reply(),
                (_, status) => WebResponse::status(status),
            }
        });
        let get = || client().get(&server.url("/"), None, 100);
        assert!(retry(2, get).unwrap_err().is_transient(), "{trouble}");
        assert_eq!(retry(5, get).unwrap(), b"at last");
        assert_eq!(server.seen_requests().len(), 3);
    }
    let server = FakeServer::serve(|_| WebResponse::status(401));
    let error = retry(5, || client().get(&server.url("/"), None, 1)).unwrap_err();
    assert_eq!((status(&error), server.seen_requests().len()), (401, 1));
    // Another process could get the port of a closed server.
    let mut tries = 0;
    let error = retry(5, || {
        tries += 1;
        client().get("http://127.0.0.1:1/", None, 1)
    });
    assert!(matches!(error, Err(HttpError::Unreachable { .. })), "{error:?}");
    assert_eq!(tries, 5);
}

#[test]
fn response_is_limited_and_must_be_complete() {
    let server = FakeServer::serve(|request| match request.path.as_str() {
        "/short" => cut_reply(b"1234567890", 4),
        _ => WebResponse::ok(b"12345"),
    });
    assert_eq!(client().get(&server.url("/"), None, 5).unwrap(), b"12345");
    let error = client().get(&server.url("/"), None, 4).unwrap_err();
    assert!(matches!(error, HttpError::TooLarge { limit_bytes: 4, .. }), "{error:?}");
    let error = client().get(&server.url("/short"), None, 100).unwrap_err();
    assert!(error.is_transient(), "{error:?}");
}

#[test]
fn token_is_sent_only_to_its_origin() {
    let other = FakeServer::serve(|_| WebResponse::ok(b"there"));
    let (same, away) = ("/new".to_owned(), other.url("/away?x"));
    let server = FakeServer::serve(move |request| match request.path.as_str() {
        "/same" => reply(302, "").with("location", &same),
        "/away" => reply(307, "").with("location", &away),
        "/loop" => reply(301, "").with("location", "/loop"),
        "/file" => reply(302, "").with("location", "file:///etc/passwd"),
        _ => WebResponse::ok(b"here"),
    });
    let get = |path: &str| client().get(&server.url(path), Some("T0KEN"), 100);
    assert_eq!(get("/same").unwrap(), b"here");
    assert_eq!(server.seen_requests()[1].header("authorization"), Some("Bearer T0KEN"));
    assert_eq!(get("/away").unwrap(), b"there");
    assert_eq!(other.seen_requests()[0].header("authorization"), None);
    assert!(matches!(get("/loop"), Err(HttpError::Redirect { .. })));
    assert!(matches!(get("/file"), Err(HttpError::Redirect { .. })));
    // A POST follows no redirects.
    let posted = client().post_json(&server.url("/away"), Some("T0KEN"), &json!({}));
    assert_eq!(status(&posted.unwrap_err()), 307);
    assert_eq!(other.seen_requests().len(), 1);
}

#[test]
fn download_resumes_if_the_server_supports_ranges() {
    let server = FakeServer::serve(|request| match (&*request.path, request.header("range")) {
        ("/knows", Some("bytes=3-")) => reply(206, b"456").with("content-range", "bytes 3-5/6"),
        ("/lies", Some(_)) => reply(206, b"x").with("content-range", "bytes 1-1/6"),
        _ => WebResponse::ok(b"123456"),
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
fn proxies_are_used_except_for_excluded_hosts() {
    let proxy = FakeServer::serve(|_| WebResponse::status(403));
    let get = |no_proxy: &str, url: &str| {
        let (http_proxy, no_proxy) = (proxy.url(""), no_proxy.to_owned());
        let proxy = ProxyUrls { http_proxy, no_proxy, https_proxy: String::new() };
        let client = HttpClient::new(&HttpOptions { proxy, ..HttpOptions::default() }).unwrap();
        chain(&client.get(url, None, 10).unwrap_err())
    };
    let url = "http://garm.invalid/x";
    let error = get("", url);
    assert!(error.starts_with("GET http://garm.invalid/x: ") && error.contains("403"), "{error}");
    assert!(!get("a, .invalid", url).contains("403"));
    assert_eq!(proxy.seen_requests()[0].method, "CONNECT");
    // Loopback is always reached without a proxy.
    let server = FakeServer::serve(|_| reply(404, b"direct"));
    assert!(get("", &server.url("/")).ends_with("404: direct"));
}

#[test]
fn invalid_certificates_are_rejected() {
    for pem in ["x", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
        let options = HttpOptions { ca_pem: pem.into(), ..HttpOptions::default() };
        assert!(matches!(HttpClient::new(&options), Err(HttpError::Certificates { .. })), "{pem}");
    }
}

#[test]
fn silent_server_is_not_waited_for() {
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let server = FakeServer::serve(move |_| {
        let _ = is_over.recv();
        no_reply()
    });
    let options = HttpOptions::default();
    let client =
        HttpClient::with_timeouts(&options, CONNECT_TIMEOUT, Duration::from_millis(50)).unwrap();
    let error = client.get(&server.url("/"), None, 1).unwrap_err();
    assert!(matches!(error, HttpError::Timeout { .. }), "{error:?}");
    assert!(error.is_transient());
    drop(over);
}

#[test]
fn named_certificates_are_trusted() {
    let certificates = TestCertificates::shared();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = WebServer::start_at(listener, Some(certificates.tls()), |_| WebResponse::ok("ok"));
    let url = format!("https://localhost:{}/", server.port());
    let authority = std::fs::read_to_string(certificates.authorities()).unwrap();
    for (ca_pem, is_trusted) in [("", false), (authority.as_str(), true)] {
        let options = HttpOptions { ca_pem: ca_pem.into(), ..HttpOptions::default() };
        match HttpClient::new(&options).unwrap().get(&url, None, 10) {
            Ok(content) => assert!(is_trusted && content == b"ok"),
            Err(error) => {
                assert!(!is_trusted && matches!(error, HttpError::Tls { .. }), "{error:?}");
                assert!(!error.is_transient());
            }
        }
    }
}

#[test]
fn certificates_of_the_host_stay_trusted() {
    let of_host = rustls_native_certs::load_native_certs().certs.len();
    let authority = include_str!("../../../testsupport/data/tls/ca.pem");
    match root_certificates(authority).unwrap() {
        RootCerts::Specific(all) => assert_eq!(all.len(), of_host + 1),
        other => panic!("{other:?}"),
    }
}
