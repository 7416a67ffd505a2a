//! Hooks for containers of pods.

use std::fs;
use std::process::{Child, Command, Stdio};

use oci_hooks_testsupport::hook_matrix::HookMatrix;
use oci_hooks_testsupport::program::{self, wait_until};
use serde_json::{Value, json};

use crate::containerd::{ContainerParams, Containerd};

const STAGES: [&str; 5] =
    ["createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

const CONFIG: &str = "hooks-dirs = [\"DIR/hooks.d\"]\nlog-file = \"DIR/plugin.log\"\n\
                      log-level = \"debug\"\nmetrics = \"DIR/metrics.prom\"\n";

const SUCCEED: &[&str] = &["/bin/true"];

/// A plugin that connects to containerd, killed on drop.
struct ExternalPlugin(Child);

impl ExternalPlugin {
    fn start(containerd: &Containerd) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks-nri"));
        command.arg("--hooks-dir").arg(containerd.path("hooks.d"));
        command.arg("--log-file").arg(containerd.path("plugin.log"));
        command.arg("--socket").arg(containerd.path("nri.sock"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        ExternalPlugin(command.spawn().unwrap())
    }
}

impl Drop for ExternalPlugin {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn plugin_log(containerd: &Containerd) -> String {
    fs::read_to_string(containerd.path("plugin.log")).unwrap_or_default()
}

/// Waits until containerd has accepted a plugin `count` times.
#[track_caller]
fn wait_for_connections(containerd: &Containerd, count: usize) {
    wait_until("the connection of the plugin", || {
        containerd.log().matches("oci-hooks-nri\\\" connected").count() == count
    });
}

#[test]
fn hooks_of_each_stage_run_on_runc_and_crun() {
    let containerd = Containerd::start_with_plugin(CONFIG);
    for runtime in ["runc", "crun"] {
        for stage in STAGES {
            let script =
                format!("cat >\"$OUT/{runtime}-{stage}\"; env >\"$OUT/{runtime}-{stage}.env\"");
            let when = json!({"annotations": {"^example\\.com/hooks$": format!("^{runtime}$")}});
            containerd.hook(&format!("{runtime}-{stage}.json"), &script, when, &[stage]);
        }
        let out = containerd.path("out");
        let annotations = [("example.com/hooks", runtime)];
        let pod = containerd.pod(runtime, &annotations);
        let wanted =
            ContainerParams { command: SUCCEED, mounts: &[&out], ..ContainerParams::default() };
        let id = containerd.create(&pod, "main", &wanted).unwrap();
        assert_eq!(containerd.run(&id), 0, "{}", containerd.log());
        containerd.remove(&id);
        for stage in STAGES {
            let name = format!("{runtime}-{stage}");
            let state = containerd.hook_output(&name).unwrap_or_else(|| {
                panic!("{name} did not run\n{}\n{}", plugin_log(&containerd), containerd.log())
            });
            let state: Value = serde_json::from_str(&state).unwrap();
            assert_eq!(state["id"], id.as_str(), "{name}");
            let env = containerd.hook_output(&format!("{name}.env")).unwrap();
            assert!(env.contains("OCI_HOOKS_NRI=1\n"), "{name}: {env}");
            assert!(!env.contains("OF_THE_IMAGE"), "{name}: {env}");
        }
    }
    let log = plugin_log(&containerd);
    assert!(log.contains("\"tests/pod-0/main\"") && log.contains("matches=true"), "{log}");
}

#[test]
fn conditions_apply_to_the_pods_container() {
    let containerd = Containerd::start_with_plugin(CONFIG);
    let when = [
        ("command", json!({"commands": ["^/bin/false$"]})),
        ("mounts", json!({"hasBindMounts": true})),
        ("container", json!({"annotations": {"^who$": "^container$"}})),
        ("pod", json!({"annotations": {"^who$": "^pod$"}})),
    ];
    for (name, when) in when {
        let script = format!("echo >>\"$OUT/{name}\"");
        containerd.hook(&format!("{name}.json"), &script, when, &["createRuntime"]);
    }
    let out = containerd.path("out");
    let ran = || {
        let mut names: Vec<_> = fs::read_dir(&out)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        for name in &names {
            fs::remove_file(out.join(name)).unwrap();
        }
        names.join(" ")
    };
    let run = |pod: &_, name, wanted: &ContainerParams| {
        let id = containerd.create(pod, name, wanted).unwrap();
        containerd.run(&id)
    };
    let pod = containerd.pod("runc", &[]);
    run(&pod, "plain", &ContainerParams { command: SUCCEED, ..ContainerParams::default() });
    assert_eq!(ran(), "");
    let wanted =
        ContainerParams { command: &["/bin/false"], mounts: &[&out], ..ContainerParams::default() };
    assert_eq!(run(&pod, "all", &wanted), 1);
    assert_eq!(ran(), "command mounts");
    let annotations = [("who", "container")];
    let wanted = ContainerParams {
        command: SUCCEED,
        annotations: &annotations,
        ..ContainerParams::default()
    };
    run(&pod, "annotated", &wanted);
    assert_eq!(ran(), "container");
    let pod = containerd.pod("runc", &[("who", "pod")]);
    run(&pod, "overlaid", &wanted);
    assert_eq!(ran(), "pod");
}

#[test]
fn changes_apply_and_a_broken_file_keeps_the_others() {
    let containerd = Containerd::start_with_plugin(CONFIG);
    let pod = containerd.pod("runc", &[]);
    let always = || json!({"always": true});
    let run = |name: &str| {
        let wanted = ContainerParams { command: SUCCEED, ..ContainerParams::default() };
        let id = containerd.create(&pod, name, &wanted).unwrap();
        assert_eq!(containerd.run(&id), 0);
    };
    run("none");
    for file in ["a", "b"] {
        let script = format!("echo >>\"$OUT/{file}\"");
        containerd.hook(&format!("{file}.json"), &script, always(), &["poststart"]);
    }
    run("both");
    containerd.hook_file("a.json", "{ // comment\n}");
    run("broken");
    fs::remove_file(containerd.path("hooks.d/a.json")).unwrap();
    run("removed");
    let lines = |name| containerd.hook_output(name).unwrap_or_default().lines().count();
    assert_eq!((lines("a"), lines("b")), (2, 3), "{}", plugin_log(&containerd));
    assert!(plugin_log(&containerd).contains("a.json:1:3: comment in JSON"));
}

#[test]
fn rejected_container_is_an_error_with_a_reason() {
    use std::os::unix::fs::PermissionsExt as _;

    let containerd = Containerd::start_with_plugin(CONFIG);
    containerd.hook("a.json", "true", json!({"commands": ["true$"]}), &["poststart"]);
    let file = containerd.path("hooks.d/a.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let pod = containerd.pod("runc", &[]);
    let wanted = ContainerParams { command: SUCCEED, ..ContainerParams::default() };
    let error = containerd.create(&pod, "main", &wanted).unwrap_err();
    let expected = format!("(hint: chmod go-w {})", file.display());
    assert!(error.contains("oci-hooks-nri: cannot trust a hook"), "{error}");
    assert!(error.contains(&expected), "{error}");
    let other = ContainerParams { command: &["/bin/false"], ..ContainerParams::default() };
    assert_eq!(containerd.run(&containerd.create(&pod, "other", &other).unwrap()), 1);
    let ctr = ["--namespace", "k8s.io", "containers", "list", "--quiet"];
    assert_eq!(containerd.ctr(&ctr).stdout.lines().count(), 2, "the pod and the other container");
}

#[test]
fn configuration_error_of_the_plugin_is_in_containerds_log() {
    let mut containerd = Containerd::prepare_with_plugin("strikt = true\n");
    containerd.spawn_daemon();
    wait_until("the mistake in the log", || {
        containerd.log().contains("configuration of this plugin at 1:1: unknown field")
    });
    wait_until("the end of the CRI", || containerd.log().contains("level=fatal"));
}

#[test]
fn restarted_plugin_reports_missed_containers() {
    let mut containerd = Containerd::start();
    containerd.hook("a.json", "echo >>\"$OUT/a\"", json!({"always": true}), &["poststart"]);
    let lines =
        |containerd: &Containerd| containerd.hook_output("a").unwrap_or_default().lines().count();
    let run = |containerd: &Containerd, pod: &_, name: &str| {
        let wanted = ContainerParams { command: SUCCEED, ..ContainerParams::default() };
        let id = containerd.create(pod, name, &wanted).unwrap();
        assert_eq!(containerd.run(&id), 0);
        lines(containerd)
    };
    let plugin = ExternalPlugin::start(&containerd);
    wait_for_connections(&containerd, 1);
    let pod = containerd.pod("runc", &[]);
    assert_eq!(run(&containerd, &pod, "guarded"), 1);
    drop(plugin);
    wait_until("the end of the connection", || containerd.log().contains("connection to plugin"));
    // The runtime reports running containers to new plugins.
    let wanted = ContainerParams { command: &["/bin/sleep", "1000"], ..ContainerParams::default() };
    containerd.start_container(&containerd.create(&pod, "missed", &wanted).unwrap());
    assert_eq!(lines(&containerd), 1);
    let _plugin = ExternalPlugin::start(&containerd);
    wait_for_connections(&containerd, 2);
    assert_eq!(run(&containerd, &pod, "guarded-again"), 2);
    let log = plugin_log(&containerd);
    let reported: Vec<_> =
        log.lines().filter(|line| line.contains("lacks hooks of files that match it")).collect();
    assert_eq!(reported.len(), 1, "{log}");
    assert!(reported[0].contains("\"tests/pod-0/missed\""), "{log}");
    let injected = "hooks of a container container=\"tests/pod-0/guarded-again\"";
    assert!(log.contains(injected), "{log}");

    containerd.stop_daemon();
    containerd.start_daemon();
    wait_for_connections(&containerd, 3);
    let pod = containerd.pod("runc", &[]);
    assert_eq!(run(&containerd, &pod, "after-restart"), 3, "{}", plugin_log(&containerd));
}

#[test]
fn containers_of_ctr_are_not_handled_by_nri() {
    let containerd = Containerd::start_with_plugin(CONFIG);
    containerd.hook("a.json", "echo >>\"$OUT/a\"", json!({"always": true}), &["poststart"]);
    let runc = program::find("runc");
    let root = containerd.path("ctr-root");
    let fifos = containerd.path("ctr-fifo");
    let [runc, root, fifos] = [&runc, &root, &fifos].map(|path| path.to_str().unwrap());
    let options = ["--runc-binary", runc, "--runc-root", root, "--fifo-dir", fifos];
    let run = ["--namespace", "k8s.io", "run", "--rm", "--snapshotter", "native"];
    let what = [crate::image::IMAGE, "of-ctr", "/bin/echo", "ran"];
    let finished = containerd.ctr(&[&run[..], &options, &what].concat());
    assert_eq!(finished.success(), "ran\n");
    assert_eq!(containerd.hook_output("a"), None);
    assert!(!plugin_log(&containerd).contains("of-ctr"));
}

#[test]
fn explain_states_what_the_plugin_injects() {
    let containerd = Containerd::start_with_plugin(CONFIG);
    let hooks = containerd.path("hooks.d");
    let mut matrix = HookMatrix::new(&hooks, &[]);
    let bin = containerd.bin();
    let all_annotations = [("com.example.first", "1"), ("second", "two w")];
    let cases: [(&str, &[&str], usize); 3] = [
        ("sleep", &["/bin/sleep", "1000"], 0),
        ("shell", &["/bin/sh", "-c", "exec sleep 1000"], 0),
        ("annotated", &["/bin/sleep", "1000"], 2),
    ];
    for (name, command, count) in cases {
        let annotations = &all_annotations[..count];
        let pod = containerd.pod("runc", annotations);
        let wanted = ContainerParams { command, ..ContainerParams::default() };
        let id = containerd.create(&pod, name, &wanted).unwrap();
        containerd.start_container(&id);
        let mut explain = Command::new(program::built_program("oci-hooks"));
        explain.args(["explain", &id, "--format", "json", "--hooks-dir"]).arg(&hooks);
        for (key, value) in annotations {
            explain.arg("--annotation").arg(format!("{key}={value}"));
        }
        explain.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
        let report: Value = serde_json::from_str(&program::run(&mut explain).stdout).unwrap();
        assert_eq!(report["consumer"], "nri");
        assert_eq!(report["target"]["unclear_annotations"], annotations.is_empty());
        let facts = report["container"]["facts"].as_array().unwrap();
        let path = facts.iter().find(|fact| fact["fact"] == "config.json").unwrap();
        let config = fs::read(path["value"].as_str().unwrap()).unwrap();
        matrix.compare(name, &report, &serde_json::from_slice(&config).unwrap());
    }
    println!("containerd with the NRI plugin: {}", matrix.summary());
}
