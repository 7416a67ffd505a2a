//! `container-hook template`.

use std::fs;

use oci_hooks_testsupport::cli::{ProgramRun, TestEnv, golden};
use serde_json::{Value, json};

use crate::{DATA, PROGRAM};

const TEMPLATE: &str = "\
metadata:
  annotations: {com.example.gpu: \"true\"}
spec:
  hostname: ci
  containers:
  - name: $job
    image: debian
    env:
    - name: A
      value: \"yes\"
  - name: $cache
    resources:
      limits: {cpu: 2, memory: 1Gi}
  - name: side-car
    image: alpine
    command: [sh, -c, \"echo one\\necho two\"]
";

const MISTAKEN: &str = "spec:\n  containers:\n  - name: $job\n    volumeMount: []\n";

fn request() -> String {
    let service = json!({"image": "redis:7", "contextName": "cache", "portMappings": ["6379"]});
    let container = json!({
        "image": "node:22",
        "workingDirectory": "/__w/repo/repo",
        "environmentVariables": {"HOME": "/github/home", "NODE_ENV": "test"},
    });
    json!({
        "command": "prepare_job",
        "responseFile": "/response.json",
        "args": {"container": container, "services": [service]},
    })
    .to_string()
}

fn env() -> TestEnv {
    let env = TestEnv::new(PROGRAM);
    env.write("request.json", &request());
    env.write("template.yaml", TEMPLATE);
    env.write("mistaken.yaml", MISTAKEN);
    env
}

fn add_settings(env: &TestEnv, text: &str) {
    let settings = fs::read_to_string(env.path("settings.toml")).unwrap();
    env.write("settings.toml", &(settings + text));
}

fn pod(ran: &ProgramRun) -> Value {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn printed_pod_shows_the_origin_of_each_value() {
    let env = env();
    let args =
        ["template", "--request", "request.json", "--template", "template.yaml", "--explain"];
    let ran = env.run(&args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    golden(DATA, "template-explained.yaml", &ran.stdout);
    let note = "note: template.yaml:7:5: the image of $job has no effect: the workflow sets it\n";
    assert_eq!(ran.stderr, note);
}

#[test]
fn yaml_and_json_are_equivalent() {
    let env = env();
    let args = ["template", "--request", "request.json", "--template", "template.yaml"];
    let yaml = env.run(&args);
    assert_eq!(env.run(&[&args[..], &["--format", "yaml"]].concat()).stdout, yaml.stdout);
    let json = pod(&env.run(&[&args[..], &["--format", "json"]].concat()));
    assert_eq!(json["spec"]["containers"][1]["resources"]["limits"]["cpu"], "2");
    // The printed pod can also be used as the base.
    env.write("pod.yaml", &yaml.stdout);
    let again = pod(&env.run(&["template", "--base", "pod.yaml", "--format", "json"]));
    assert_eq!(again, json);
    let ran = env.run(&["template", "--format", "json", "--explain"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
}

#[test]
fn runner_variable_selects_the_template() {
    let env = env();
    let run = |variable: &str| {
        let mut command = env.command(&["template", "--format", "json"]);
        command.env("ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE", variable);
        env.run_with_input(command, b"")
    };
    assert_eq!(pod(&run("template.yaml"))["spec"]["hostname"], "ci");
    assert_eq!(pod(&run(""))["spec"]["hostname"], Value::Null);
    let ran = run("nowhere.yaml");
    assert_eq!(ran.code, Some(2));
    let message = "error: cannot open nowhere.yaml: No such file or directory";
    assert!(ran.stderr.starts_with(message), "{}", ran.stderr);
    assert!(ran.stderr.contains("hint: --template or ACTIONS_RUNNER"), "{}", ran.stderr);
}

#[test]
fn template_is_merged_into_the_pod_of_a_step() {
    let env = env();
    let base = json!({"spec": {"containers": [{"name": "job", "image": "alpine"}]}});
    env.write("pod.json", &base.to_string());
    let args =
        ["template", "--base", "pod.json", "--template", "template.yaml", "--format", "json"];
    let step = env.run(&[&args[..], &["--for", "step"]].concat());
    let spec = &pod(&step)["spec"];
    assert_eq!(spec["containers"][0]["env"], json!([{"name": "A", "value": "yes"}]));
    assert_eq!(spec["containers"][1]["name"], "side-car");
    assert!(!step.stderr.contains("$cache"), "{}", step.stderr);
    // In a job, such an entry may be a mistake.
    assert!(env.run(&args).stderr.contains("$cache has no effect"));
    let step = json!({"command": "run_container_step", "args": {"image": "alpine"}}).to_string();
    let command = env.command(&["template", "--request", "-", "--format", "json"]);
    let ran = env.run_with_input(command, step.as_bytes());
    assert_eq!(pod(&ran)["metadata"]["name"], "runner-step");
}

#[test]
fn errors_have_a_position() {
    let env = env();
    let mistake = "error: mistaken.yaml:4:5: spec.containers[0] has no field `volumeMount`; did you \
                   mean `volumeMounts`?\n";
    for args in [
        &["template", "lint", "mistaken.yaml"][..],
        &["template", "--template", "mistaken.yaml"],
        &["template", "--request", "request.json", "--template", "mistaken.yaml"],
    ] {
        let ran = env.run(args);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(2), "", mistake));
    }
    env.write("cleanup.json", r#"{"command": "cleanup_job", "args": {}}"#);
    env.write("pod.json", r#"{"spec": {"containers": [{"nmae": "job"}]}}"#);
    for (args, message) in [
        (["--request", "cleanup.json"], "error: a request cleanup_job has no pod: "),
        (["--request", "template.yaml"], "error: the request is not JSON: "),
        (["--base", "pod.json"], "error: pod.json:1:27: spec.containers[0] has no field `nmae`"),
        (["--base", "nowhere"], "error: cannot open nowhere: "),
    ] {
        let ran = env.run(&[&["template"][..], &args].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(ran.stderr.starts_with(message), "{}", ran.stderr);
    }
}

#[test]
fn lint_reports_fields_without_effect() {
    let env = env();
    let ran = env.run(&["template", "lint", "template.yaml"]);
    let note = "template.yaml:7:5: the image of $job has no effect: the workflow sets it\n";
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), note, ""));
    // The hook reserves some names.
    env.write("taken.yaml", "spec: {volumes: [{name: work, emptyDir: {}}]}");
    let ran = env.run(&["template", "lint", "taken.yaml"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.contains("volume name `work` is already used by the hook"),
        "{}",
        ran.stderr
    );
}

#[test]
fn examples_have_no_errors_and_are_described() {
    let env = TestEnv::new(PROGRAM);
    add_settings(&env, "[policy]\nprivileged = true\n");
    let dir = oci_hooks_testsupport::program::repository("docs/templates");
    let readme = fs::read_to_string(dir.join("README.md")).unwrap();
    let mut count = 0;
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "README.md" {
            continue;
        }
        assert!(readme.contains(&format!("[{name}]({name})")), "{name} is not described");
        let path = path.to_str().unwrap();
        let ran = env.run(&["template", "lint", path]);
        assert_eq!(ran.stdout, format!("{path}: no mistakes\n"), "{ran:?}");
        let with = pod(&env.run(&["template", "--template", path, "--format", "json"]));
        assert_ne!(
            with,
            pod(&env.run(&["template", "--format", "json"])),
            "{name} changes nothing"
        );
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn only_the_template_command_writes_yaml() {
    let ran = TestEnv::new(PROGRAM).run(&["ps", "--format", "yaml"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stderr, "error: --format yaml is only for `container-hook template`\n");
}

#[test]
fn lint_reports_fields_that_one_host_cannot_apply() {
    let env = TestEnv::new(PROGRAM);
    let text = "spec:\n  nodeName: a\n  volumes:\n  - name: v\n    nfs: {server: s, path: /}\n";
    env.write("refused.yaml", text);
    let ran = env.run(&["template", "lint", "refused.yaml"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let expected = "refused.yaml:5:10: /spec/volumes/3/nfs: cannot be applied on one host: mount it \
                    on the host, and use `hostPath`";
    assert!(ran.stderr.contains(expected), "{ran:?}");
    env.write("nothing.yaml", "spec: {nodeName: a}\n");
    let ran = env.run(&["template", "lint", "nothing.yaml"]);
    let expected = "spec.nodeName has no effect on a single host: there is only one host\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), expected), "{ran:?}");
}

/// `lint` reports the errors of `prepare_job` with the settings of this machine.
#[test]
fn lint_reports_what_jobs_fail_with() {
    let env = TestEnv::new(PROGRAM);
    let lint = |spec: &str| {
        env.write("t.yaml", &format!("spec: {spec}\n"));
        env.run(&["template", "lint", "t.yaml"])
    };
    let of_job = |fields: &str| format!("{{containers: [{{name: $job, {fields}}}]}}");
    for (spec, problem) in [
        (of_job("resources: {limits: {nvidia.com/gpu: 1}}"), "there is no device plugin"),
        (of_job("resources: {limits: {hugepages-2Mi: 4Mi}}"), "hugepages-2Mi"),
        (of_job("securityContext: {privileged: true}"), "`privileged = true` under [policy]"),
        (
            of_job("env: [{name: A, valueFrom: {secretKeyRef: {name: none, key: a}}}]"),
            "valueFrom/secretKeyRef",
        ),
        (of_job("env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]"), "nodeName"),
        ("{hostPID: true}".to_owned(), "host-namespaces"),
        ("{runtimeClassName: none}".to_owned(), "runtimeClassName"),
        ("{imagePullSecrets: [{name: none}]}".to_owned(), "imagePullSecrets"),
    ] {
        let ran = lint(&spec);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{spec}: {ran:?}");
        assert!(ran.stderr.contains(problem), "{spec}: {ran:?}");
        assert!(ran.stderr.contains("t.yaml:1:"), "{spec}: {ran:?}");
    }
    let accepted = "t.yaml: no mistakes\n";
    assert_eq!(lint("{hostUsers: false}").stdout, accepted);
    // A cluster has device plugins.
    add_settings(&env, "[backend]\nkind = \"kubernetes\"\n");
    assert_eq!(lint(&of_job("resources: {limits: {nvidia.com/gpu: 1}}")).stdout, accepted);
}

#[test]
fn objects_that_contain_a_template_are_no_templates() {
    let env = TestEnv::new(PROGRAM);
    for (text, place) in [
        (
            "kind: ConfigMap\ndata:\n  job.yaml: |\n    spec: {}\n",
            "2:1: not a template, but an object that contains one: the file must have only the text of a key of this ConfigMap: `job.yaml`",
        ),
        (
            "kind: PodTemplate\ntemplate:\n  spec: {}\n",
            "2:1: not a template, but an object that contains one: the file must have only the content of `template`",
        ),
    ] {
        env.write("t.yaml", text);
        let ran = env.run(&["template", "lint", "t.yaml"]);
        assert_eq!(ran.code, Some(2));
        assert!(ran.stderr.contains(place), "{ran:?}");
    }
}
