//! Hooks of containers.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use oci_hooks_nri::wire::nri::{
    Container, CreateContainerResponse, Hook, Hooks, PodSandbox, SynchronizeRequest,
};
use oci_hooks_testsupport::program::wait_until;
use prost::Message as _;

use crate::plugin::{PluginDir, container};
use crate::runtime::SimulatedRuntime;

const ALWAYS: &str = r#"{"always": true}"#;

fn names(hooks: &[Hook]) -> Vec<&str> {
    hooks.iter().map(|hook| hook.args[0].as_str()).collect()
}

#[test]
fn hooks_go_to_their_stages_in_order_of_their_names() {
    let place = PluginDir::new();
    place.hook("20-b.json", ALWAYS, r#"["prestart", "createContainer", "startContainer"]"#);
    place.hook("10-a.json", ALWAYS, r#"["createRuntime", "poststart", "poststop"]"#);
    place.hook("30-c.json", r#"{"commands": ["^/bin/other$"]}"#, r#"["poststop"]"#);
    let (_plugin, mut runtime) = place.start_accepted(&[]);
    let hooks = runtime.create(None, container("/bin/sh")).unwrap();
    let Hooks { prestart, create_runtime, create_container, start_container, poststart, poststop } =
        &hooks;
    assert!(prestart.is_empty());
    assert_eq!(names(create_runtime), ["10-a.json", "20-b.json"]);
    assert_eq!(names(create_container), ["20-b.json"]);
    assert_eq!(names(start_container), ["20-b.json"]);
    assert_eq!(names(poststart), ["10-a.json"]);
    assert_eq!(names(poststop), ["10-a.json"]);
    assert_eq!(create_runtime[0].env, ["OCI_HOOKS_NRI=1"]);
    assert_eq!(create_runtime[0].path, "/bin/true");
    let log = place.log();
    assert!(log.contains("10-a.json (createRuntime, poststart, poststop)"), "{log}");
}

#[test]
fn decisions_are_logged_and_annotations_cannot_inject_lines() {
    let place = PluginDir::new();
    let when = r#"{"annotations": {"^key$": "value"}}"#;
    place.hook("a.json", when, r#"["poststop"]"#);
    let (_plugin, mut runtime) = place.start_accepted(&["--log-level", "debug"]);
    let pod = PodSandbox {
        name: "web".to_owned(),
        namespace: "shop".to_owned(),
        annotations: BTreeMap::from([("key".to_owned(), "value\nforged line".to_owned())]),
        ..PodSandbox::default()
    };
    assert_eq!(runtime.create(Some(pod), container("/bin/sh")).unwrap().poststop.len(), 1);
    runtime.create(None, container("/bin/sh")).unwrap();
    let log = place.log();
    for text in [
        "\"shop/web/main\"",
        "matches=true reason=\"annotation `key=value\\nforged line` matches",
        "matches=false reason=\"no annotation matches key `^key$` and value `value`\"",
    ] {
        assert!(log.contains(text), "{text}\n{log}");
    }
    assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
}

#[test]
fn changes_of_hook_files_apply_to_the_next_container() {
    let place = PluginDir::new();
    let (_plugin, mut runtime) = place.start_accepted(&[]);
    let mut count = || runtime.create(None, container("/bin/sh")).unwrap().poststop.len();
    assert_eq!(count(), 0);
    for round in 0..5 {
        place.hook("a.json", ALWAYS, r#"["poststop"]"#);
        assert_eq!(count(), 1, "{round}");
        fs::remove_file(place.path("hooks.d/a.json")).unwrap();
        assert_eq!(count(), 0, "{round}");
    }
    fs::rename(place.path("hooks.d"), place.path("gone")).unwrap();
    assert_eq!(count(), 0);
    fs::create_dir(place.path("hooks.d")).unwrap();
    place.hook("b.json", ALWAYS, r#"["poststop", "poststop"]"#);
    assert_eq!(count(), 2);
}

#[test]
fn broken_file_keeps_its_last_version_and_the_others() {
    let place = PluginDir::new();
    place.hook("a.json", ALWAYS, r#"["poststop"]"#);
    place.hook("b.json", ALWAYS, r#"["poststop"]"#);
    place.write("never-good.json", "{");
    let (_plugin, mut runtime) = place.start_accepted(&[]);
    place.write("b.json", "{ // comment\n}");
    let hooks = runtime.create(None, container("/bin/sh")).unwrap();
    assert_eq!(names(&hooks.poststop), ["a.json", "b.json"]);
    let problem = "b.json:1:3: comment in JSON";
    place.wait_for_log(problem);
    place.wait_for_log("never-good.json:1:");
    // The last version is used.
    let log = place.log();
    let warning = log.lines().find(|line| line.contains(problem)).unwrap();
    assert!(warning.contains("the content of this hook file is not used"), "{warning}");
    let broken = [
        "oci_hooks_nri_broken_files{in_force=\"false\"} 1\n",
        "oci_hooks_nri_broken_files{in_force=\"true\"} 1\n",
    ];
    wait_until("the metrics", || {
        let text = fs::read_to_string(place.path("metrics.prom")).unwrap_or_default();
        broken.iter().all(|line| text.contains(line))
    });
}

#[test]
fn strict_rejects_containers_until_the_file_is_fixed() {
    let place = PluginDir::new();
    place.hook("a.json", ALWAYS, r#"["poststop"]"#);
    place.hook("filter.json", ALWAYS, r#"["precreate"]"#);
    let (_plugin, mut runtime) = place.start_accepted(&["--strict"]);
    let (code, error) = runtime.create(None, container("/bin/sh")).unwrap_err();
    assert_eq!(code, 9);
    assert!(error.starts_with("oci-hooks-nri: cannot decide which hooks apply: "), "{error}");
    assert!(error.contains("filter.json:2:") && error.contains("\"precreate\""), "{error}");
    assert!(place.log().contains("NRI plugins cannot rewrite a configuration"), "{}", place.log());
    fs::remove_file(place.path("hooks.d/filter.json")).unwrap();
    assert_eq!(runtime.create(None, container("/bin/sh")).unwrap().poststop.len(), 1);
}

#[test]
fn hook_writable_by_others_rejects_its_containers_unless_allowed() {
    let place = PluginDir::new();
    place.hook("a.json", r#"{"commands": ["/sh$"]}"#, r#"["poststop"]"#);
    let file = place.path("hooks.d/a.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let (_plugin, mut runtime) = place.start_accepted(&[]);
    let (_, error) = runtime.create(None, container("/bin/sh")).unwrap_err();
    let expected = format!("(hint: chmod go-w {})", file.display());
    assert!(error.contains(&expected), "{error}");
    runtime.create(None, container("/bin/true")).unwrap();
    let (_plugin, mut runtime) = place.start_accepted(&["--allow-untrusted"]);
    let hooks = runtime.create(None, container("/bin/sh")).unwrap();
    assert!(hooks.poststop[0].env.is_empty());
}

#[test]
fn existing_containers_without_their_hooks_are_reported() {
    let place = PluginDir::new();
    place.hook("a.json", r#"{"commands": ["/sh$"]}"#, r#"["poststop"]"#);
    // Of a pod that the runtime sends in another part of its list.
    place.hook("b.json", r#"{"annotations": {"^key$": "value"}}"#, r#"["poststop"]"#);
    let (_plugin, socket) = place.start(&[]);
    let mut runtime = SimulatedRuntime::new(socket);
    assert_eq!(runtime.register(), "42-hooks");
    runtime.configure("").unwrap();
    let named = |name: &str, program| Container { name: name.to_owned(), ..container(program) };
    let part =
        |pods, containers, more| SynchronizeRequest { pods, containers, more }.encode_to_vec();
    let pod = PodSandbox {
        id: "pod".to_owned(),
        annotations: BTreeMap::from([("key".to_owned(), "value".to_owned())]),
        ..PodSandbox::default()
    };
    let of_pod = |name| Container { pod_sandbox_id: "pod".to_owned(), ..named(name, "/bin/true") };
    let hooks = runtime.create(None, container("/bin/sh")).unwrap();
    let with_hooks = Container { hooks: Some(hooks), ..named("guarded", "/bin/sh") };
    let parts = [
        (Vec::new(), vec![named("one", "/bin/sh"), with_hooks, of_pod("early")]),
        (vec![pod], vec![named("two", "/bin/sh")]),
        (Vec::new(), vec![named("three", "/bin/true"), of_pod("late")]),
    ];
    for (number, (pods, containers)) in parts.into_iter().enumerate() {
        runtime.call("Synchronize", part(pods, containers, number < 2)).unwrap();
    }
    let log = place.log();
    let lines: Vec<_> =
        log.lines().filter(|line| line.contains("lacks hooks of files that match it")).collect();
    assert_eq!(lines.len(), 4, "{log}");
    for (line, name) in lines.iter().zip(["one", "early", "two", "late"]) {
        assert!(line.contains(&format!("{name}\"")), "{log}");
    }
    wait_until("the metrics", || {
        let text = fs::read_to_string(place.path("metrics.prom")).unwrap_or_default();
        text.contains("oci_hooks_nri_containers_without_hooks 4\n")
    });
}

#[test]
fn large_responses_arrive() {
    let place = PluginDir::new();
    let stages = vec!["\"poststop\""; 300].join(",");
    place.hook("a.json", ALWAYS, &format!("[{stages}]"));
    let (_plugin, mut runtime) = place.start_accepted(&[]);
    assert_eq!(runtime.create(None, container("/bin/sh")).unwrap().poststop.len(), 300);
}

#[test]
fn request_recorded_from_containerd_is_parsed() {
    let recorded = fs::read("tests/data/create-containerd-1.7.24.bin").unwrap();
    let place = PluginDir::new();
    for (name, when) in [
        ("command.json", r#"{"commands": ["^/bin/false$"]}"#),
        ("container.json", r#"{"annotations": {"^io.kubernetes.cri.image-name$": "busybox"}}"#),
        ("mounts.json", r#"{"hasBindMounts": true}"#),
        ("pod.json", r#"{"annotations": {"^io.kubernetes.cri.container-type$": "^sandbox$"}}"#),
        ("z-other.json", r#"{"commands": ["^/bin/true$"]}"#),
    ] {
        place.hook(name, when, r#"["createRuntime"]"#);
    }
    let (_plugin, mut runtime) = place.start_accepted(&[]);
    let response = runtime.replay(&recorded).unwrap();
    let response = CreateContainerResponse::decode(&response[..]).unwrap();
    let hooks = response.adjust.unwrap().hooks.unwrap();
    let expected = ["command.json", "container.json", "mounts.json", "pod.json"];
    assert_eq!(names(&hooks.create_runtime), expected);
}
