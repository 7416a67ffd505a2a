//! Registries that fail for the moment, for good, or say nothing.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use oci_hooks::step_runner::function_oci::{Function, FunctionError};
use oci_hooks::step_runner::resolve::Interrupt;
use serde_json::json;

use crate::setup::{ARCHIVE, Job, Ran};
use crate::support::http::{Request, Response, Server};

/// Answers as a registry that has nothing and takes everything.
pub(crate) fn accept(request: &Request) -> Response {
    match request.method.as_str() {
        "GET" | "HEAD" if request.path != "/v2/" => Response::status(404),
        "POST" => Response::status(202).with("location", "/v2/a/b/blobs/uploads/1?state=x"),
        "PUT" => Response::status(201),
        _ => Response::status(200),
    }
}

/// Publishes to a registry that answers the first requests of a kind so.
fn publish(
    is_meant: impl Fn(&Request) -> bool + Send + Sync + 'static,
    answers: Vec<Response>,
) -> (Ran, Vec<Request>) {
    let answers = Mutex::new(answers.into_iter());
    let server = Server::start(move |request| {
        let next = is_meant(request).then(|| answers.lock().unwrap().next()).flatten();
        next.unwrap_or_else(|| accept(request))
    });
    let job = Job::new();
    job.build("1.0.0");
    let ran = job.publish(&format!("{}/a/b", server.address()));
    (ran, server.requests())
}

fn is_blob(request: &Request) -> bool {
    request.method == "PUT" && request.path.contains("/blobs/uploads/")
}

fn is_manifest(request: &Request) -> bool {
    request.method == "PUT" && request.path.contains("/manifests/")
}

/// Whether a request is of a kind.
type Kind = fn(&Request) -> bool;

#[test]
fn what_fails_for_the_moment_is_tried_again() {
    let wait = || Response::status(429).with("retry-after", "0");
    let broken = || Response { refused: true, ..Response::default() };
    let (kinds, names): (Vec<Kind>, _) = (
        vec![is_blob, is_manifest, |request| request.method == "POST"],
        ["a blob", "a manifest", "an upload"],
    );
    for (kind, name) in kinds.into_iter().zip(names) {
        let answers = vec![
            Response::status(503).with("retry-after", "0"),
            wait(),
            broken(),
            Response::status(500),
        ];
        let (ran, _) = publish(kind, answers);
        assert_eq!(ran.log.matches("Trying again in ").count(), 4, "{name}: {}", ran.log);
        ran.success();
    }
}

#[test]
fn a_server_that_wants_a_second_gets_it() {
    let start = Instant::now();
    let answer = Response::status(503).with("retry-after", "1");
    let (ran, _) = publish(is_blob, vec![answer]);
    assert!(ran.log.contains("Trying again in 1.0 s: "), "{}", ran.log);
    ran.success();
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn what_fails_for_good_is_named_and_nothing_is_tagged() {
    let forever = || vec![Response::status(500); 10];
    let denied = || {
        let errors = json!({"errors": [{"code": "DENIED", "message": "quota exceeded"}]});
        let refused = Response { status: 413, ..Response::ok(errors.to_string()) };
        vec![refused]
    };
    for (answers, expected, attempts) in [
        (forever(), "answered 500 to the request for", 5),
        (denied(), "answered 413 to the request for", 1),
        (vec![Response::status(403)], "authentication required for a/b", 1),
        (vec![Response::status(503).with("retry-after", "3600")], "answered 503", 1),
    ] {
        let (ran, requests) = publish(is_blob, answers);
        let error = ran.failure();
        assert!(error.contains(expected), "{error}");
        assert_eq!(requests.iter().filter(|request| is_blob(request)).count(), attempts);
        assert!(!requests.iter().any(is_manifest));
    }
    let is_upload = |request: &Request| request.method == "POST";
    for (answer, expected) in [
        (Response::status(202), "without a Location"),
        (Response::status(202).with("location", "ftp://x/"), "not an address of a web server"),
        (Response::status(202).with("location", "http://169.254.169.254/x"), "169.254.169.254"),
    ] {
        let error = publish(is_upload, vec![answer]).0.failure();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn tags_come_after_all_that_they_name() {
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
fn a_cancelled_job_sends_nothing_more() {
    let interrupt = Interrupt::new().unwrap();
    let seen = interrupt.clone();
    let server = Server::start(move |request| {
        if request.method == "POST" {
            seen.set();
        }
        accept(request)
    });
    let job = Job::new();
    job.build("1.0.0");
    let repository = format!("{}/a/b", server.address());
    let inputs = json!({"archive": ARCHIVE, "to_repository": repository});
    let result = job.call(Function::Publish, inputs).run(&interrupt, &|_, _| {});
    assert!(matches!(result, Err(FunctionError::Cancelled)), "{result:?}");
    // The upload breaks off before its first byte.
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.body.is_empty()), "{requests:?}");
    assert!(!requests.iter().any(is_manifest), "{requests:?}");
}
