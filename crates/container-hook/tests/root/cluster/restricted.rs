//! Namespaces that only admit pods of the restricted profile.

use oci_hooks_testsupport::cluster::TestNamespace;
use oci_hooks_testsupport::github_runner::{GithubRunner, container};
use serde_json::{Value, json};

use crate::cluster::setup::{NamespaceHook, cluster};

#[test]
fn restricted_job_passes_admission_unchanged() {
    let cluster = cluster();
    let namespace = TestNamespace::restricted(&cluster);
    let mut pods = NamespaceHook::for_namespace(namespace, "[kubernetes]\nrestricted = true\n");
    pods.use_proxy();
    pods.make_runner_pod(
        "restricted",
        json!({
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 1001, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "runner", "image": "ghcr.io/actions/actions-runner:latest",
                "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                },
            }],
        }),
    );
    let mut runner = GithubRunner::new(&pods, "restricted");
    runner.externals = "/home/runner/externals".into();
    let mut service = container("redis:7");
    service["createOptions"] = json!("--user 1001");
    runner.prepare(runner.job_container("test/user:1"), &[service]);
    let (ended, outputs) = runner.run_step("id -u; echo a=b >>$GITHUB_OUTPUT", &[]);
    assert_eq!(ended.success().stdout(), "1001\n");
    assert_eq!(outputs["a"], "b");
    let (ended, _) = runner.container_step(json!({"image": "test/user:1", "entryPoint": "id"}));
    ended.success();
    // Checks the pods as sent, because pod security policies set some fields themselves.
    let sent: Vec<Value> = pods
        .proxy()
        .seen_requests()
        .iter()
        .filter(|asked| {
            asked.method == "POST" && asked.path.split('?').next().unwrap().ends_with("/pods")
        })
        .map(|asked| serde_json::from_slice(&asked.body).unwrap())
        .collect();
    assert_eq!(sent.len(), 2);
    for pod in &sent {
        let spec = &pod["spec"];
        let lists = ["initContainers", "containers"].map(|list| spec[list].as_array());
        for container in lists.into_iter().flatten().flatten() {
            check(&spec["securityContext"], container);
        }
    }
    runner.cleanup();
    pods.check_gone("restricted");
}

/// Checks a container against the profile "restricted" of the pod security standards.
#[track_caller]
fn check(pod: &Value, container: &Value) {
    let own = &container["securityContext"];
    let either = |field: &str| if own[field].is_null() { &pod[field] } else { &own[field] };
    assert_eq!(either("runAsNonRoot"), true, "{container:#}");
    assert_ne!(either("runAsUser"), 0, "{container:#}");
    let seccomp = &either("seccompProfile")["type"];
    assert!(seccomp == "RuntimeDefault" || seccomp == "Localhost", "{container:#}");
    assert_eq!(own["allowPrivilegeEscalation"], false, "{container:#}");
    assert_eq!(own["capabilities"]["drop"], json!(["ALL"]), "{container:#}");
    assert_ne!(own["privileged"], true, "{container:#}");
}
