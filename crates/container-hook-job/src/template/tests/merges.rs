//! Merges without a recorded result of GitHub's hook, and errors with their positions.

use serde_json::{Value as Json, json};

use super::cases::normalize_pod;
use crate::request::{HookCommand, HookRequest, PrepareJob};
use crate::template::{BasePod, MergedPod, PodTemplate, TextPosition, ValueOrigin, base};

/// Returns a job with a container and these services.
fn job(services: &Json) -> PrepareJob {
    let container = json!({
        "image": "node:22",
        "workingDirectory": "/__w/r/r",
        "environmentVariables": {"HOME": "/github/home", "A": "1"},
    });
    let args = json!({"container": container, "services": services});
    let request = json!({"command": "prepare_job", "responseFile": "/response", "args": args});
    match HookRequest::parse(request.to_string().as_bytes()).unwrap().command {
        HookCommand::PrepareJob(job) => job,
        other => panic!("{other:?}"),
    }
}

fn merge(services: &Json, template: &str) -> MergedPod {
    let base = base::job(&job(services), "runner").unwrap();
    PodTemplate::parse("t.yaml", template).unwrap().merge_job(base).unwrap()
}

fn error(template: &str) -> String {
    let base = base::job(&job(&json!([])), "runner").unwrap();
    let merged =
        PodTemplate::parse("t.yaml", template).and_then(|template| template.merge_job(base));
    merged.unwrap_err().to_string()
}

/// Returns the names of the containers that have a variable.
fn containers_with(merged: &MergedPod, variable: &str) -> Vec<String> {
    let containers = merged.pod.spec.as_ref().unwrap().containers.iter();
    let having = containers
        .filter(|container| container.env.iter().flatten().any(|other| other.name == variable));
    having.map(|container| container.name.clone()).collect()
}

fn notes(merged: &MergedPod) -> Vec<String> {
    merged.notes.iter().map(ToString::to_string).collect()
}

/// Returns a template that sets the variable `X` in a container.
fn setting(name: &str) -> String {
    format!("spec: {{containers: [{{name: {name}, env: [{{name: X, value: '1'}}]}}]}}")
}

#[test]
fn service_is_found_by_every_given_name_and_its_image() {
    let services = json!([
        {"image": "ghcr.io/o/valkey:8", "contextName": "cache", "createOptions": "--network-alias kv --name store"},
        {"image": "postgres@sha256:00"},
    ]);
    for name in ["$cache", "$kv", "$store", "$valkey"] {
        assert_eq!(containers_with(&merge(&services, &setting(name)), "X"), ["valkey"], "{name}");
    }
    assert_eq!(containers_with(&merge(&services, &setting("$postgres")), "X"), ["postgres"]);
    assert_eq!(containers_with(&merge(&services, &setting("$job")), "X"), ["job"]);
}

#[test]
fn services_with_the_same_image_are_selected_by_number() {
    let services = json!([{"image": "redis:7"}, {"image": "redis:8"}]);
    assert_eq!(containers_with(&merge(&services, &setting("$redis-1")), "X"), ["redis-1"]);
    let both = merge(&services, &setting("$redis"));
    assert_eq!(containers_with(&both, "X"), [""; 0]);
    assert_eq!(notes(&both), ["t.yaml:1:21: $redis has no effect: this job has no such container"]);
}

#[test]
fn given_name_precedes_the_name_of_the_image() {
    let services = json!([{"image": "redis:7", "contextName": "cache"}]);
    let template = "\
spec:
  containers:
  - {name: $redis, env: [{name: IMAGE, value: '1'}]}
  - {name: $cache, env: [{name: GIVEN, value: '1'}]}
";
    let merged = merge(&services, template);
    assert_eq!(
        (containers_with(&merged, "GIVEN").len(), containers_with(&merged, "IMAGE").len()),
        (1, 0)
    );
    assert_eq!(
        notes(&merged),
        ["t.yaml:3:5: $redis has no effect: another entry for the same container is used"]
    );
}

#[test]
fn job_of_services_alone_has_no_job_container() {
    let services_only = PrepareJob { container: None, ..job(&json!([{"image": "redis:7"}])) };
    let base = base::job(&services_only, "runner").unwrap();
    let template = "spec: {containers: [{name: $job, env: []}, {name: $redis, tty: true}]}";
    let merged = PodTemplate::parse("t.yaml", template).unwrap().merge_job(base).unwrap();
    assert_eq!(merged.pod.spec.as_ref().unwrap().containers[0].tty, Some(true));
    assert_eq!(notes(&merged), ["t.yaml:1:21: $job has no effect: this job has no such container"]);
}

#[test]
fn only_the_first_entry_for_a_container_is_used() {
    let template = "\
spec:
  containers:
  - {name: $job, tty: true}
  - {name: $job, tty: false}
";
    let merged = merge(&json!([]), template);
    assert_eq!(merged.pod.spec.as_ref().unwrap().containers[0].tty, Some(true));
    let expected = "t.yaml:4:5: $job has no effect: another entry for the same container is used";
    assert_eq!(notes(&merged), [expected]);
}

#[test]
fn null_is_absent_and_removes_the_replaced_value() {
    let services = json!([{"image": "redis:7"}]);
    let before = base::job(&job(&services), "runner").unwrap().pod;
    for template in [
        "metadata: {labels:, annotations: }",
        "spec: {containers:, volumes:, initContainers:}",
        "spec: {containers: [{name: $job, env:, ports:, volumeMounts: }]}",
    ] {
        assert_eq!(merge(&services, template).pod, before, "{template}");
    }
    let pod = merge(&services, "spec: {securityContext:, containers: [{name: $job, args:}]}").pod;
    let spec = pod.spec.unwrap();
    assert_eq!((spec.security_context, &spec.containers[0].args), (None, &None));
}

#[test]
fn existing_label_is_replaced_with_a_note_unless_it_is_reserved() {
    let pod = json!({
        "metadata": {"labels": {"runner-pod": "r", "team": "a"}, "annotations": {"x": "1"}},
        "spec": {"containers": [{"name": "job", "image": "i"}]},
    });
    let base = BasePod::parse("pod.json", &pod.to_string()).unwrap();
    let template = "metadata: {labels: {team: b, new: c, runner-pod: x}, annotations: {x: '2'}}";
    let merged = PodTemplate::parse("t.yaml", template).unwrap().merge_job(base).unwrap();
    assert_eq!(
        notes(&merged),
        [
            "t.yaml:1:21: the label team was already set; this value replaces it",
            "t.yaml:1:38: the label runner-pod has no effect: it is reserved for the hook",
            "t.yaml:1:68: the annotation x was already set; this value replaces it",
        ]
    );
    let labels = merged.pod.metadata.labels.unwrap();
    assert_eq!(labels.values().collect::<Vec<_>>(), ["c", "r", "b"]);
}

#[test]
fn origin_of_each_value_is_recorded() {
    let template = "\
spec:
  hostname: ci
  volumes:
  - name: cache
    emptyDir: {}
  containers:
  - name: $job
    env:
    - name: X
      value: '1'
";
    let merged = merge(&json!([{"image": "redis:7"}]), template);
    let at = |line, column| Some(ValueOrigin::Template(TextPosition { line, column }));
    for (pointer, expected) in [
        ("/spec/hostname", at(2, 13)),
        ("/spec/volumes/3", at(4, 5)),
        ("/spec/volumes/0", Some(ValueOrigin::Default)),
        ("/spec/containers/0/image", Some(ValueOrigin::Request)),
        ("/spec/containers/0/env/0/value", Some(ValueOrigin::Request)),
        ("/spec/containers/0/env/1/value", Some(ValueOrigin::Default)),
        ("/spec/containers/0/env/3", at(9, 7)),
        ("/spec/containers/0/env/4", None),
        ("/spec/nothing", None),
    ] {
        assert_eq!(merged.origin(pointer), expected, "{pointer}");
    }
    let explained = merged.to_commented_yaml();
    for line in
        ["hostname: ci # t.yaml:2", "image: redis:7 # request", "restartPolicy: Never # default"]
    {
        assert!(explained.contains(line), "{explained}");
    }
}

#[test]
fn written_yaml_parses_to_the_same_pod() {
    let merged = merge(&json!([{"image": "redis:7"}]), &setting("$job"));
    for text in [merged.yaml(), merged.to_commented_yaml()] {
        let again = BasePod::parse("pod.yaml", &text).unwrap().pod;
        assert_eq!(normalize_pod(&json!(again)), normalize_pod(&json!(merged.pod)), "{text}");
    }
}

#[test]
fn other_top_level_keys_can_hold_yaml_anchors() {
    let text = "x-env: &env [{name: X, value: '1'}]\ncommon: &limits {memory: 1Gi}\nstatus: {}\n\
                spec: {containers: [{name: $job, env: *env, resources: {limits: *limits}}]}\n";
    let merged = merge(&json!([]), text);
    let job = &merged.pod.spec.as_ref().unwrap().containers[0];
    assert!(job.env.iter().flatten().any(|variable| variable.name == "X"), "{job:?}");
    assert!(job.resources.is_some());
    let expected = ["t.yaml:2:1: common has no effect;", "t.yaml:3:1: status has no effect;"];
    let notes = notes(&merged);
    assert_eq!(notes.len(), expected.len(), "{notes:?}");
    assert!(notes.iter().zip(expected).all(|(note, start)| note.starts_with(start)), "{notes:?}");
}

#[test]
fn errors_have_a_position_and_a_fix() {
    let mut wrong = Vec::new();
    let deep = format!("spec: {}1{}", "[".repeat(100), "]".repeat(100));
    for (template, expected) in [
        ("", "t.yaml: empty template: expected `metadata` or `spec`"),
        ("~", "t.yaml:1:1: a template must be a mapping with `metadata` or `spec`, not null"),
        ("a: 1\nb", "t.yaml:3:1: invalid YAML: missing `:` on the line before this"),
        (
            "spec: {}\n---\n",
            "t.yaml:2:1: a second document begins here: expected one template in the file",
        ),
        (
            "spec: {}\nspec: {}\n",
            "t.yaml:2:1: duplicate key `spec`, first in line 1: remove one of them",
        ),
        ("spce: {}", "t.yaml:1:1: a template has no field `spce`; did you mean `spec`?"),
        (
            "spec:\n  <<: 1",
            "t.yaml:2:7: expected a mapping, or a list of mappings, as the value of `<<`",
        ),
        (
            "spec:\n  containers:\n  - name: $job\n    volumeMount: []\n",
            "t.yaml:4:5: spec.containers[0] has no field `volumeMount`; did you mean `volumeMounts`?",
        ),
        (
            "spec:\n  containers:\n  - name: $job\n    env:\n    - {name: A, value: 1}\n",
            "t.yaml:5:24: spec.containers[0].env[0].value must be a string, not a number; write it in quotes",
        ),
        (
            "spec: {hostNetwork: yes}",
            "t.yaml:1:21: spec.hostNetwork must be true or false, not a string",
        ),
        (
            "spec: {activeDeadlineSeconds: 1.5}",
            "t.yaml:1:31: spec.activeDeadlineSeconds must be a whole number",
        ),
        (
            "spec: {containers: [{name: $job, resources: {limits: {memory: 1GB}}}]}",
            "t.yaml:1:63: spec.containers[0].resources.limits.memory: is not a quantity; write a number",
        ),
        (
            "spec: {containers: [null]}",
            "t.yaml:1:21: spec.containers[0] must be a mapping, not null",
        ),
        (
            "spec: {initContainers: [{name: fs-init, image: i}]}",
            "container name `fs-init` is already used by the hook",
        ),
        (
            "spec:\n  volumes:\n  - {name: a, emptyDir: {}}\n  - {name: a, emptyDir: {}}\n",
            "t.yaml:4:5: spec.volumes[1]: volume name `a` is already used in line 3: use another name",
        ),
        (
            "spec: {containers: [{name: $x, volumeMounts: [{name: a, mountPath: /a}, {name: b, mountPath: /a/}]}]}",
            "mount path /a/ is already used in line 1: use another path",
        ),
        ("spec: !!str x", "t.yaml:1:7: spec must be a mapping, not a string"),
        ("spec: !mine {}", "t.yaml:1:7: unknown tag !mine: remove it"),
        ("spec: {[a]: b}", "t.yaml:1:8: expected a string as key, got a list"),
        (
            "spec: &a {hostname: *a}",
            "t.yaml:1:21: recursive alias: it refers to a node that contains it",
        ),
        (&deep, "nested too deeply (limit 64)"),
    ] {
        let error = error(template);
        if !error.contains(expected) {
            wrong.push(format!("{error}\n  and not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unreadable_files_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("t.yaml");
    let error = |path| PodTemplate::read(path).unwrap_err().to_string();
    assert_eq!(error(&path), format!("cannot open {}", path.display()));
    assert_eq!(error(temp.path()), format!("cannot read {}", temp.path().display()));
    std::fs::write(&path, b"spec:\n  hostname: \"\xc3\xa4\xff\"\n").unwrap();
    assert_eq!(error(&path), format!("{}:2:15: is not UTF-8", path.display()));
    std::fs::write(&path, vec![b' '; 2 << 20]).unwrap();
    assert!(error(&path).contains("more than 1048576"));
}

#[test]
fn alias_expansion_is_limited() {
    let mut bomb =
        "metadata: {annotations: {a0: &a0 x}}\nspec:\n  nodeSelector:\n    b0: &b0 [lol, lol]\n"
            .to_owned();
    for level in 1..40 {
        bomb += &format!("    b{level}: &b{level} [*b{0}, *b{0}]\n", level - 1);
    }
    assert!(error(&bomb).contains("too much data after expanding aliases"), "{}", error(&bomb));
    let long = format!(
        "spec: {{tolerations: [&a {{key: {}}}{}]}}",
        "x".repeat(1 << 16),
        ", *a".repeat(1 << 10)
    );
    assert!(error(&long).contains("too much data after expanding aliases"));
    // Small aliases are accepted.
    let shared = "\
spec:
  containers:
  - {name: $job, env: &proxy [{name: HTTP_PROXY, value: 'http://proxy'}]}
  - {name: $redis, env: *proxy}
";
    let merged = merge(&json!([{"image": "redis"}]), shared);
    assert_eq!(containers_with(&merged, "HTTP_PROXY"), ["job", "redis"]);
}
