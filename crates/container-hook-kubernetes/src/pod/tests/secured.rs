//! Pods under the restricted profile, checked without a cluster's pod security admission.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::super::restricted::faults;
use super::{PodFixture, container, has_note, job_with, services, spec};

fn restricted_fixture() -> PodFixture {
    PodFixture::new().kubernetes(|settings| settings.restricted = true)
}

#[test]
fn whole_pod_passes_the_restricted_profile() {
    let world = restricted_fixture()
        .image("node:22", &json!({"User": ""}))
        .image("redis", &json!({"User": "999:999"}))
        .image("web", &json!({"User": "www"}))
        .image("step", &json!({"Entrypoint": ["x"], "User": "5"}))
        .template(
            "spec: {containers: [{name: side, image: s}], initContainers: [{name: i, image: s}]}",
        );
    let args = services(&[("redis", "redis", ""), ("web", "web", "--cap-drop NET_RAW")]);
    for made in [world.make_pod(&args), world.make_pod(&json!({"image": "step"}))] {
        assert_eq!(faults(spec(&made)), [""; 0]);
        let pod = spec(&made).security_context.as_ref().unwrap();
        assert_eq!(pod.run_as_non_root, Some(true));
        assert_eq!(pod.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault");
        let inits = spec(&made).init_containers.iter().flatten();
        for container in spec(&made).containers.iter().chain(inits) {
            let context = container.security_context.as_ref().unwrap();
            assert_eq!(context.allow_privilege_escalation, Some(false), "{}", container.name);
            let drop = context.capabilities.as_ref().unwrap().drop.as_ref();
            assert_eq!(drop.unwrap(), &["ALL"], "{}", container.name);
        }
    }
    let made = world.make_pod(&args);
    let user = |name: &str| container(&made, name).security_context.as_ref().unwrap().run_as_user;
    assert_eq!((user("job"), user("redis"), user("web")), (Some(1001), None, Some(1001)));
    assert_eq!((user("side"), user("fs-init")), (None, Some(1001)));
    assert!(has_note(&made, "container job runs as user 1001") && has_note(&made, "container web"));
    let made = world.make_pod(&job_with("--user 7"));
    assert_eq!(container(&made, "job").security_context.as_ref().unwrap().run_as_user, Some(7));
}

#[test]
fn violations_of_the_profile_are_rejected_with_a_reason() {
    for (options, part) in [
        ("--user 0", "container job: runAsUser is 0"),
        ("--cap-add SYS_PTRACE", "container job: it has the capability SYS_PTRACE"),
        ("--privileged", "container job: it is privileged"),
        ("--security-opt seccomp=unconfined", "container job: seccompProfile is neither"),
        ("--security-opt no-new-privileges=false", "allowPrivilegeEscalation is not false"),
        ("--pid=host", "hostPID is true"),
        ("--network host", "hostNetwork is true"),
        ("-v /var:/var", "volume oci-hooks-0 is of a kind that is not allowed"),
        ("--sysctl net.core.somaxconn=1", "the sysctl net.core.somaxconn is not safe"),
    ] {
        let world = restricted_fixture().policy("preset = \"docker\"");
        let error = world.request_error(&job_with(options));
        assert!(error.contains("`restricted = true`") && error.contains(part), "{error}");
    }
    let template =
        "spec: {containers: [{name: side, image: s, securityContext: {privileged: true}}]}";
    let error = restricted_fixture().template(template).request_error(&job_with(""));
    assert!(error.contains("container side: it is privileged"), "{error}");
    assert_eq!(
        restricted_fixture().make_pod(&job_with("--cap-add NET_BIND_SERVICE")).notes.len(),
        1
    );
}

/// Checks a pod that complies, and a violation of each control of the profile.
#[test]
fn each_rule_of_the_profile_is_checked() {
    let pod = json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "c", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        }}],
        "initContainers": [{"name": "i", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        }}],
    });
    let of = |pod: &Value| faults(&serde_json::from_value::<PodSpec>(pod.clone()).unwrap());
    assert_eq!(of(&pod), [""; 0]);
    for (pointer, value) in [
        ("/hostNetwork", json!(true)),
        ("/hostPID", json!(true)),
        ("/hostIPC", json!(true)),
        ("/volumes/0", json!({"name": "v", "hostPath": {"path": "/"}})),
        ("/volumes/0", json!({"name": "v", "nfs": {"server": "s", "path": "/"}})),
        ("/securityContext/runAsNonRoot", json!(null)),
        ("/securityContext/runAsUser", json!(0)),
        ("/securityContext/seccompProfile", json!(null)),
        ("/securityContext/seccompProfile/type", json!("Unconfined")),
        ("/securityContext/appArmorProfile", json!({"type": "Unconfined"})),
        ("/securityContext/sysctls", json!([{"name": "kernel.msgmax", "value": "1"}])),
        ("/containers/0/securityContext/privileged", json!(true)),
        ("/containers/0/securityContext/allowPrivilegeEscalation", json!(null)),
        ("/containers/0/securityContext/runAsNonRoot", json!(false)),
        ("/containers/0/securityContext/runAsUser", json!(0)),
        ("/containers/0/securityContext/procMount", json!("Unmasked")),
        ("/containers/0/securityContext/seccompProfile", json!({"type": "Unconfined"})),
        ("/containers/0/securityContext/appArmorProfile", json!({"type": "Unconfined"})),
        ("/containers/0/securityContext/capabilities/drop", json!(["NET_RAW"])),
        ("/containers/0/securityContext/capabilities/add", json!(["SYS_TIME"])),
        ("/containers/0/ports", json!([{"containerPort": 1, "hostPort": 1}])),
        ("/initContainers/0/securityContext", json!({})),
    ] {
        let mut pod = pod.clone();
        let (above, field) = pointer.rsplit_once('/').unwrap();
        let above = pod.pointer_mut(above).unwrap();
        match above {
            Value::Array(items) => items[field.parse::<usize>().unwrap()] = value.clone(),
            above => above[field] = value.clone(),
        }
        assert!(!of(&pod).is_empty(), "{pointer} {value}");
    }
    let add = json!(["NET_BIND_SERVICE"]);
    let mut pod = pod;
    pod["containers"][0]["securityContext"]["capabilities"]["add"] = add;
    assert_eq!(of(&pod), [""; 0]);
}
