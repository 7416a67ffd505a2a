//! Retry rules of API calls, against a server with scripted answers.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Secret};
use oci_hooks_files::error::chain;
use serde_json::{Value, json};

use super::testing::{ScriptedReply, answer, cluster};
use super::{ClusterClient, ClusterError, Verb};
use crate::client::RetryPolicy;

fn pod() -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap()
}

/// An existing pod, created by another call.
fn foreign_pod() -> ScriptedReply {
    let pod = json!({"metadata": {"name": "a", "annotations": {"oci-hooks/call": "other"}}});
    answer(200, &pod.to_string())
}

fn exists() -> ScriptedReply {
    answer(409, r#"{"reason":"AlreadyExists","message":"pods \"a\" already exists"}"#)
}

fn create(cluster: &ClusterClient) -> Result<Pod, ClusterError> {
    cluster.run(cluster.create_pod(&pod()))
}

fn verbs(calls: &super::testing::RecordedCalls) -> Vec<String> {
    let calls = calls.lock().unwrap();
    calls.iter().map(|(line, _)| line.split(' ').next().unwrap().to_owned()).collect()
}

/// Returns the cluster with a short time limit of an attempt if the server is silent.
fn without_patience(cluster: ClusterClient, reply: &ScriptedReply) -> ClusterClient {
    let policy = cluster.policy;
    cluster.with_retries(match reply {
        ScriptedReply::Silence => RetryPolicy { answer: Duration::from_secs(3), ..policy },
        _ => policy,
    })
}

#[test]
fn temporary_errors_are_retried() {
    for failure in [
        answer(408, ""),
        answer(429, ""),
        answer(500, ""),
        answer(502, "bad gateway"),
        answer(503, ""),
        answer(504, ""),
        ScriptedReply::Close,
        ScriptedReply::Silence,
        // An answer that is cut off in the middle.
        ScriptedReply::Answer(200, "Transfer-Encoding: chunked\r\nX-", String::new()),
    ] {
        let ok = answer(200, r#"{"metadata": {"name": "a"}}"#);
        let (cluster, calls) = cluster(vec![failure.clone(), failure.clone(), ok]);
        let cluster = without_patience(cluster, &failure);
        let pod = cluster.run(cluster.pod("a")).unwrap().unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("a"));
        assert_eq!(calls.lock().unwrap().len(), 3, "{failure:?}");
    }
}

#[test]
fn permanent_errors_are_not_retried() {
    for code in [400, 401, 403, 405, 422, 501] {
        let (cluster, calls) = cluster(vec![answer(code, r#"{"message": "no"}"#)]);
        let error = chain(&cluster.run(cluster.pod("a")).unwrap_err());
        assert_eq!(error, "cannot read pod a: no");
        assert_eq!(calls.lock().unwrap().len(), 1);
    }
    let (cluster, _) = cluster(vec![answer(200, "[]")]);
    let error = chain(&cluster.run(cluster.pod("a")).unwrap_err());
    assert!(
        error.starts_with("cannot read pod a: invalid response from the API server"),
        "{error}"
    );
}

#[test]
fn denial_shortly_after_a_restart_is_retried() {
    let denied =
        || answer(403, r#"{"message": "pods is forbidden: User \"u\" cannot get resource"}"#);
    let unknown = answer(401, r#"{"message": "Unauthorized"}"#);
    let (cluster, calls) =
        cluster(vec![ScriptedReply::Close, unknown, denied(), answer(200, "{}")]);
    cluster.run(cluster.pod("a")).unwrap();
    assert_eq!(calls.lock().unwrap().len(), 4);
    // Otherwise a denied call is not retried.
    let (cluster, calls) = super::testing::cluster(vec![denied()]);
    cluster.run(cluster.pod("a")).unwrap_err();
    assert_eq!(calls.lock().unwrap().len(), 1);
}

#[test]
fn retry_after_of_the_server_is_respected() {
    let header = ScriptedReply::Answer(429, "Retry-After: 1\r\n", String::new());
    let details = answer(503, r#"{"details": {"retryAfterSeconds": 1}}"#);
    for failure in [header, details] {
        let (cluster, _) = cluster(vec![failure, answer(200, "{}")]);
        let began = Instant::now();
        cluster.run(cluster.pod("a")).unwrap();
        assert!(began.elapsed() >= Duration::from_secs(1));
    }
    // Longer than the policy allows: fails at once.
    let (cluster, _) =
        cluster(vec![ScriptedReply::Answer(429, "Retry-After: 600\r\n", String::new())]);
    let began = Instant::now();
    let error = cluster.run(cluster.pod("a")).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(200));
    assert_eq!(chain(&error), "cannot read pod a: the API server answered with code 429");
}

#[test]
fn retries_end_at_the_time_limit() {
    let (cluster, calls) = cluster(vec![answer(503, ""); 1000]);
    let limit = Duration::from_secs(5);
    let cluster = cluster.with_retries(RetryPolicy { limit, ..RetryPolicy::brief() });
    let error = cluster.run(cluster.pods("")).unwrap_err();
    assert_eq!(chain(&error), "cannot list pods: the API server answered with code 503");
    assert!(error.is_temporary());
    let count = calls.lock().unwrap().len();
    assert!((2..1000).contains(&count), "{count}");
}

#[test]
fn object_of_an_unanswered_create_call_is_recognized() {
    for lost in [ScriptedReply::Close, ScriptedReply::Silence, answer(500, ""), answer(504, "")] {
        // The second call finds a pod with the mark of the first.
        let (cluster, calls) = super::testing::cluster_with_replies({
            let mut made: Option<Value> = None;
            let mut lost = Some(lost.clone());
            move |line, body| match line {
                "POST /api/v1/namespaces/ns/pods?" => match lost.take() {
                    Some(lost) => {
                        made = serde_json::from_str(body).ok();
                        lost
                    }
                    None => exists(),
                },
                "GET /api/v1/namespaces/ns/pods/a" => {
                    answer(200, &made.clone().unwrap().to_string())
                }
                other => panic!("{other}"),
            }
        });
        create(&without_patience(cluster, &lost)).unwrap();
        assert_eq!(verbs(&calls), ["POST", "POST", "GET"]);
    }
}

#[test]
fn existing_object_of_the_same_name_is_an_error() {
    for found in [foreign_pod(), answer(404, "{}")] {
        let (cluster, calls) = cluster(vec![exists(), found]);
        let error = chain(&create(&cluster).unwrap_err());
        assert!(error.contains("pods \"a\" already exists"), "{error}");
        assert_eq!(verbs(&calls), ["POST", "GET"]);
    }
}

#[test]
fn deleting_a_missing_object_succeeds() {
    let (cluster, calls) = cluster(vec![answer(404, "{}"), answer(200, "{}"), answer(403, "{}")]);
    cluster.run(cluster.delete_pod("a", Some(0))).unwrap();
    cluster.run(cluster.delete_secret("b")).unwrap();
    cluster.run(cluster.delete_secret("b")).unwrap_err();
    let calls = calls.lock().unwrap();
    assert!(calls[0].1.contains("\"gracePeriodSeconds\":0"), "{:?}", calls[0]);
    assert_eq!(calls[1].0, "DELETE /api/v1/namespaces/ns/secrets/b?");
}

#[test]
fn missing_object_is_none_and_null_is_an_empty_list() {
    let (cluster, calls) = cluster(vec![
        answer(404, r#"{"reason": "NotFound"}"#),
        answer(200, r#"{"items": null}"#),
        answer(200, r#"{"items": [{"metadata": {"name": "s"}}]}"#),
    ]);
    assert!(cluster.run(cluster.pod("a")).unwrap().is_none());
    assert!(cluster.run(cluster.pods("runner-pod=r")).unwrap().is_empty());
    let secrets: Vec<Secret> = cluster.run(cluster.secrets("")).unwrap();
    assert_eq!(secrets[0].metadata.name.as_deref(), Some("s"));
    let list = &calls.lock().unwrap()[1].0;
    assert!(list.contains("labelSelector=runner-pod%3Dr"), "{list}");
}

#[test]
fn permissions_are_checked_one_by_one() {
    let (cluster, calls) = cluster(vec![
        answer(201, r#"{"spec": {}, "status": {"allowed": true}}"#),
        answer(201, r#"{"spec": {}, "status": {"allowed": false, "reason": ""}}"#),
    ]);
    assert!(cluster.run(cluster.has_permission(Verb::Get, "pods", Some("exec"))).unwrap());
    assert!(!cluster.run(cluster.has_permission(Verb::Watch, "pods", None)).unwrap());
    let asked: Value = serde_json::from_str(&calls.lock().unwrap()[0].1).unwrap();
    let expected =
        json!({"namespace": "ns", "resource": "pods", "subresource": "exec", "verb": "get"});
    assert_eq!(asked["spec"]["resourceAttributes"], expected);
}

#[test]
fn object_names_cannot_contain_paths() {
    let (cluster, calls) = cluster(vec![]);
    for name in ["", "../secrets/x", "a/b", "a?b", "a%2fb", "A b"] {
        cluster.run(cluster.pod(name)).unwrap_err();
        cluster.run(cluster.log(name, "job", None)).unwrap_err();
        cluster.run(cluster.delete_pod(name, None)).unwrap_err();
        cluster.run(cluster.exec(name, "job", &["true"], true)).unwrap_err();
    }
    assert!(calls.lock().unwrap().is_empty());
}

#[test]
fn unreachable_server_is_reported() {
    let cluster = super::testing::cluster_at("http://127.0.0.1:1");
    let cluster = cluster
        .with_retries(RetryPolicy { limit: Duration::from_millis(50), ..RetryPolicy::brief() });
    let error = chain(&cluster.run(cluster.pod("a")).unwrap_err());
    assert!(error.starts_with("cannot read pod a: the API server cannot be reached: "), "{error}");
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn rejected_exec_is_reported_with_its_message() {
    let body = r#"{"message": "container not found (\"job\")", "reason": "NotFound", "code": 404}"#;
    let (cluster, calls) = cluster(vec![answer(404, body)]);
    let error = chain(&cluster.run(cluster.exec("a", "job", &["x y", "&"], true)).unwrap_err());
    assert_eq!(error, "cannot start a program in pod a: container not found (\"job\")");
    let line = &calls.lock().unwrap()[0].0;
    assert!(line.contains("command=x+y&command=%26"), "{line}");
}
