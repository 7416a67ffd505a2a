//! Registries that fail temporarily or permanently, or do not answer.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use oci_hooks_testsupport::http::{WebRequest, WebResponse, WebServer};
use serde_json::json;
use step_runner::function_oci::{FunctionError, OciFunction};
use step_runner::resolve::Interrupt;

use crate::functions::setup::{ARCHIVE, FunctionJob, FunctionRun};

/// Answers like a registry that is empty and accepts all uploads.
pub(crate) fn accept(request: &WebRequest) -> WebResponse {
    match request.method.as_str() {
        "GET" | "HEAD" if request.path != "/v2/" => WebResponse::status(404),
        "POST" => WebResponse::status(202).with("location", "/v2/a/b/blobs/uploads/1?state=x"),
        "PUT" => WebResponse::status(201),
        _ => WebResponse::status(200),
    }
}

/// Publishes to a registry that gives these answers to the first matching requests.
fn publish(
    is_meant: impl Fn(&WebRequest) -> bool + Send + Sync + 'static,
    answers: Vec<WebResponse>,
) -> (FunctionRun, Vec<WebRequest>) {
    let answers = Mutex::new(answers.into_iter());
    let server = WebServer::start(move |request| {
        let next = is_meant(request).then(|| answers.lock().unwrap().next()).flatten();
        next.unwrap_or_else(|| accept(request))
    });
    let job = FunctionJob::new();
    job.build("1.0.0");
    let ran = job.publish(&format!("{}/a/b", server.address()));
    (ran, server.requests())
}

fn is_blob(request: &WebRequest) -> bool {
    request.method == "PUT" && request.path.contains("/blobs/uploads/")
}

fn is_manifest(request: &WebRequest) -> bool {
    request.method == "PUT" && request.path.contains("/manifests/")
}

/// A function that returns whether a request is of a kind.
type RequestFilter = fn(&WebRequest) -> bool;

#[test]
fn temporary_errors_are_retried() {
    let wait = || WebResponse::status(429).with("retry-after", "0");
    let broken = || WebResponse { refused: true, ..WebResponse::default() };
    let (kinds, names): (Vec<RequestFilter>, _) = (
        vec![is_blob, is_manifest, |request| request.method == "POST"],
        ["a blob", "a manifest", "an upload"],
    );
    for (kind, name) in kinds.into_iter().zip(names) {
        let answers = vec![
            WebResponse::status(503).with("retry-after", "0"),
            wait(),
            broken(),
            WebResponse::status(500),
        ];
        let (ran, _) = publish(kind, answers);
        assert_eq!(ran.log.matches("Retrying in ").count(), 4, "{name}: {}", ran.log);
        ran.success();
    }
}

#[test]
fn retry_after_of_a_server_is_respected() {
    let start = Instant::now();
    let answer = WebResponse::status(503).with("retry-after", "1");
    let (ran, _) = publish(is_blob, vec![answer]);
    assert!(ran.log.contains("Retrying in 1.0 s: "), "{}", ran.log);
    ran.success();
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn permanent_errors_are_named_and_nothing_is_tagged() {
    let forever = || vec![WebResponse::status(500); 10];
    let denied = || {
        let errors = json!({"errors": [{"code": "DENIED", "message": "quota exceeded"}]});
        let refused = WebResponse { status: 413, ..WebResponse::ok(errors.to_string()) };
        vec![refused]
    };
    for (answers, expected, attempts) in [
        (forever(), "answered 500 to the request for", 5),
        (denied(), "answered 413 to the request for", 1),
        (vec![WebResponse::status(403)], "authentication required for a/b", 1),
        (vec![WebResponse::status(503).with("retry-after", "3600")], "answered 503", 1),
    ] {
        let (ran, requests) = publish(is_blob, answers);
        let error = ran.failure();
        assert!(error.contains(expected), "{error}");
        assert_eq!(requests.iter().filter(|request| is_blob(request)).count(), attempts);
        assert!(!requests.iter().any(is_manifest));
    }
    let is_upload = |request: &WebRequest| request.method == "POST";
    for (answer, expected) in [
        (WebResponse::status(202), "without a Location"),
        (WebResponse::status(202).with("location", "ftp://x/"), "expected an http or https URL"),
        (WebResponse::status(202).with("location", "http://169.254.169.254/x"), "169.254.169.254"),
    ] {
        let error = publish(is_upload, vec![answer]).0.failure();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn tags_are_pushed_after_their_content() {
    let (ran, requests) = publish(|_| false, Vec::new());
    ran.success();
    let puts: Vec<_> = requests
        .iter()
        .filter(|request| request.method == "PUT")
        .map(|request| match request.path.rsplit_once("/manifests/") {
            Some((_, target)) if target.starts_with("sha256:") => "manifest",
            Some((_, target)) => target,
            None => "blob",
        })
        .collect();
    let expected = ["blob"; 5].into_iter().chain(["manifest"; 2]);
    let expected: Vec<_> = expected.chain(["1.0.0", "1.0", "1", "latest"]).collect();
    assert_eq!(puts, expected);
}

#[test]
fn cancelled_job_stops_sending() {
    let interrupt = Interrupt::new().unwrap();
    let seen = interrupt.clone();
    let server = WebServer::start(move |request| {
        if request.method == "POST" {
            seen.set();
        }
        accept(request)
    });
    let job = FunctionJob::new();
    job.build("1.0.0");
    let repository = format!("{}/a/b", server.address());
    let inputs = json!({"archive": ARCHIVE, "to_repository": repository});
    let result = job.call(OciFunction::Publish, inputs).run(&interrupt, &|_, _| {});
    assert!(matches!(result, Err(FunctionError::Cancelled)), "{result:?}");
    // The upload stops before its first byte.
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.body.is_empty()), "{requests:?}");
    assert!(!requests.iter().any(is_manifest), "{requests:?}");
}
