//! Commands for a cluster, with a fake API server.

use oci_hooks_testsupport::cli::{ProgramRun, TestEnv};
use oci_hooks_testsupport::http::{WebRequest, WebResponse, WebServer};
use serde_json::{Value, json};

use crate::PROGRAM;

/// Returns an environment, and its API server, which answers method, path and body of each request with the function's
/// response.
fn env(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> (TestEnv, WebServer) {
    let server = WebServer::start(move |WebRequest { method, path, body, .. }| {
        // The body of an access review names the permission.
        let (status, text) = answer(&format!("{method} {path} {body}"));
        WebResponse { status, ..WebResponse::ok(text) }
    });
    let env = TestEnv::new(PROGRAM);
    env.write("settings.toml", "[backend]\nkind = \"kubernetes\"\n");
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", server.address())}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}]
    });
    env.write("kubeconfig", &kubeconfig.to_string());
    (env, server)
}

fn run(env: &TestEnv, args: &[&str]) -> ProgramRun {
    let mut command = env.command(args);
    command.env("KUBECONFIG", env.path("kubeconfig"));
    command.env("ACTIONS_RUNNER_POD_NAME", "runner-1");
    env.run_with_input(command, b"")
}

fn pods(line: &str) -> (u16, String) {
    let pod = json!({
        "metadata": {"name": "runner-1-workflow", "labels": {"runner-pod": "runner-1"},
            "annotations": {"com.github.actions.role": "job",
                "com.github.actions.repository": "octo/repo"}},
        "spec": {"nodeName": "n", "containers": [{"name": "job", "image": "node:22"},
            {"name": "redis", "image": "redis"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "job", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {}}}]}
    });
    let path = line.split(' ').nth(1).unwrap();
    match path.trim_start_matches("/api/v1/namespaces/ns/") {
        "pods/runner-1-workflow" => (200, pod.to_string()),
        path if path.starts_with("pods?") => (200, json!({"items": [pod]}).to_string()),
        path if path.starts_with("pods/runner-1-workflow/log?") => {
            (200, "2026-01-01T00:00:00.5Z one\n2026-01-01T00:00:01Z two\n".to_owned())
        }
        path if path.starts_with("secrets?") => (200, json!({"items": []}).to_string()),
        _ => (404, json!({"reason": "NotFound", "message": "not found"}).to_string()),
    }
}

#[test]
fn pods_of_jobs_are_listed() {
    let (env, _server) = env(pods);
    let ran = run(&env, &["ps"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let lines: Vec<Vec<&str>> =
        ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["POD", "ROLE", "RUNNER", "JOB", "NODE", "CREATED", "STATUS"]);
    let row = [
        "runner-1-workflow",
        "job",
        "runner-1",
        "octo/repo",
        "n",
        "running:",
        "redis",
        "not",
        "created",
    ];
    assert_eq!(lines[1], row);
    let found: Value =
        serde_json::from_str(&run(&env, &["ps", "--format", "json"]).stdout).unwrap();
    assert_eq!(found[0]["containers"][1]["image"], "redis");
}

#[test]
fn logs_show_one_container() {
    let (env, _server) = env(pods);
    let ran = run(&env, &["logs", "runner-1-workflow", "redis", "--timestamps"]);
    let expected = "2026-01-01T00:00:00.500Z one\n2026-01-01T00:00:01.000Z two\n";
    assert_eq!((ran.stdout.as_str(), ran.code), (expected, Some(0)));
    let ran = run(&env, &["logs", "runner-1-workflow"]);
    assert_eq!(ran.code, Some(1));
    let expected = "error: pod runner-1-workflow has containers job, redis: name one of them\n";
    assert_eq!(ran.stderr, expected);
    let ran = run(&env, &["logs", "other"]);
    assert!(ran.stderr.starts_with("error: no pod other in namespace ns\n"), "{ran:?}");
}

#[test]
fn prune_keeps_needed_pods_and_ignores_images() {
    let (env, _server) = env(pods);
    let ran = run(&env, &["prune", "--format", "json"]);
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let expected = json!({"pods": [], "secrets": [], "kept": ["pod runner-1-workflow"]});
    assert_eq!(found, expected);
    let ran = run(&env, &["prune", "--all"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.ends_with("removed 1 pod and 0 secrets of namespace ns\n"), "{ran:?}");
    let ran = run(&env, &["prune", "--age", "7d"]);
    let expected = "error: --age is for images of this machine: a cluster manages its own images\n";
    assert_eq!((ran.stderr.as_str(), ran.code), (expected, Some(1)));
}

#[test]
fn doctor_reports_the_consequence_of_each_missing_permission() {
    let (env, _server) = env(|line| match line {
        line if line.starts_with("GET /version ") => {
            (200, r#"{"gitVersion": "v1.31.2"}"#.to_owned())
        }
        line if line.contains("selfsubjectaccessreviews") => {
            let is_allowed = !line.contains("\"delete\"") && !line.contains("\"log\"");
            (201, json!({"spec": {}, "status": {"allowed": is_allowed}}).to_string())
        }
        line if line.starts_with("GET /api/v1/namespaces/ns/pods/runner-1 ") => {
            let spec = json!({"nodeName": "n", "containers": [{"name": "runner", "image": "r:1"}]});
            (200, json!({"metadata": {"uid": "u"}, "spec": spec}).to_string())
        }
        other => panic!("{other}"),
    });
    let ran = run(&env, &["doctor", "--format", "json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(found["ok"], false);
    let checks = found["checks"].as_array().unwrap();
    let of = |status: &str| -> Vec<&str> {
        let checks = checks.iter().filter(|check| check["status"] == status);
        checks.map(|check| check["found"].as_str().unwrap()).collect()
    };
    assert_eq!(
        of("fail"),
        [
            "delete pods is denied: pods are not removed when their job ends",
            "delete secrets is denied: secrets are not removed when their job ends"
        ]
    );
    assert_eq!(
        of("warn"),
        [
            "get pods/log is denied: logs of services and of failed containers are not shown",
            "are rejected: the registry or the builder for their images is not set"
        ]
    );
    for expected in ["ns", "create pods", "get pods/exec", "runner-1, on node n", "r:1"] {
        assert!(of("ok").contains(&expected), "{expected}: {:?}", of("ok"));
    }
}

#[test]
fn invalid_or_missing_kubeconfig_is_reported() {
    let env = TestEnv::new(PROGRAM);
    env.write("settings.toml", "[backend]\nkind = \"kubernetes\"\n");
    env.write("kubeconfig", "{");
    let ran = run(&env, &["ps"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.starts_with("error: cannot use the kubeconfig (KUBECONFIG or ~/.kube/config): "),
        "{ran:?}"
    );
    let mut command = env.command(&["ps"]);
    command.env("HOME", env.path("nowhere"));
    let ran = env.run_with_input(command, b"");
    assert!(ran.stderr.starts_with("error: no cluster is configured: "), "{ran:?}");
}

#[test]
fn pod_template_is_printed_without_a_cluster() {
    let env = TestEnv::new(PROGRAM);
    let ran = env.run(&["template", "--kubernetes", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let pod: Value = serde_json::from_str(&ran.stdout).unwrap();
    let spec = &pod["spec"];
    assert_eq!(
        spec["containers"][0]["command"],
        json!(["/.oci-hooks/image/usr/libexec/oci-hooks/agent"])
    );
    assert_eq!(spec["initContainers"][0]["name"], "fs-init");
    env.write("template.yaml", "spec:\n  nodeSelector: {disk: ssd}\n");
    let template = env.path("template.yaml");
    let ran = env.run(&["template", "--kubernetes", "--template", template.to_str().unwrap()]);
    assert!(ran.stdout.contains("  nodeSelector:\n    disk: ssd\n"), "{ran:?}");
}

#[test]
fn try_and_probe_are_rejected_for_a_cluster() {
    let env = TestEnv::new(PROGRAM);
    env.write("settings.toml", "[backend]\nkind = \"kubernetes\"\n");
    for words in [&["try"][..], &["doctor", "--probe"]] {
        let ran = env.run(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
        let error = "error: `try` and `doctor --probe` run jobs on this machine, but jobs of this runner are pods of a \
                     cluster: use `container-hook doctor`";
        assert!(ran.stderr.starts_with(error), "{}", ran.stderr);
        assert!(ran.stderr.contains("hint: set `kind = \"engine\"`"), "{}", ran.stderr);
    }
}
