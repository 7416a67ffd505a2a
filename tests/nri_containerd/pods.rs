//! Hooks for containers of pods.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::containerd::{Containerd, Wanted};
use crate::program::wait_until;

const STAGES: [&str; 5] =
    ["createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

const CONFIG: &str = "hooks-dirs = [\"DIR/hooks.d\"]\nlog-file = \"DIR/plugin.log\"\n\
                      log-level = \"debug\"\nmetrics = \"DIR/metrics.prom\"\n";

const SUCCEED: &[&str] = &["/bin/true"];

/// A plugin that connects to containerd; it is killed when dropped.
struct External(Child);

impl External {
    fn start(containerd: &Containerd) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks-nri"));
        command.arg("--hooks-dir").arg(containerd.path("hooks.d"));
        command.arg("--log-file").arg(containerd.path("plugin.log"));
        command.arg("--socket").arg(containerd.path("nri.sock"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        External(command.spawn().unwrap())
    }
}

impl Drop for External {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn plugin_log(containerd: &Containerd) -> String {
    fs::read_to_string(containerd.path("plugin.log")).unwrap_or_default()
}

/// Waits until containerd uses a plugin for so many times.
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
        let wanted = Wanted { command: SUCCEED, mounts: &[&out], ..Wanted::default() };
        let id = containerd.create(&pod, "main", &wanted).unwrap();
        assert_eq!(containerd.run(&id), 0, "{}", containerd.log());
        containerd.remove(&id);
        for stage in STAGES {
            let name = format!("{runtime}-{stage}");
            let state = containerd.out(&name).unwrap_or_else(|| {
                panic!("{name} did not run\n{}\n{}", plugin_log(&containerd), containerd.log())
            });
            let state: Value = serde_json::from_str(&state).unwrap();
            assert_eq!(state["id"], id.as_str(), "{name}");
            let env = containerd.out(&format!("{name}.env")).unwrap();
            assert!(env.contains("OCI_HOOKS_NRI=1\n"), "{name}: {env}");
            assert!(!env.contains("OF_THE_IMAGE"), "{name}: {env}");
        }
    }
    let log = plugin_log(&containerd);
    assert!(log.contains("\"tests/pod-0/main\"") && log.contains("matches=true"), "{log}");
}

#[test]
fn conditions_are_those_of_the_pods_container() {
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
    let run = |pod: &_, name, wanted: &Wanted| {
        let id = containerd.create(pod, name, wanted).unwrap();
        containerd.run(&id)
    };
    let pod = containerd.pod("runc", &[]);
    run(&pod, "plain", &Wanted { command: SUCCEED, ..Wanted::default() });
    assert_eq!(ran(), "");
    let wanted = Wanted { command: &["/bin/false"], mounts: &[&out], ..Wanted::default() };
    assert_eq!(run(&pod, "all", &wanted), 1);
    assert_eq!(ran(), "command mounts");
    let annotations = [("who", "container")];
    let wanted = Wanted { command: SUCCEED, annotations: &annotations, ..Wanted::default() };
    run(&pod, "annotated", &wanted);
    assert_eq!(ran(), "container");
    let pod = containerd.pod("runc", &[("who", "pod")]);
    run(&pod, "overlaid", &wanted);
    assert_eq!(ran(), "pod");
}

#[test]
fn changes_are_followed_and_a_broken_file_keeps_the_others() {
    let containerd = Containerd::start_with_plugin(CONFIG);
    let pod = containerd.pod("runc", &[]);
    let always = || json!({"always": true});
    let run = |name: &str| {
        let wanted = Wanted { command: SUCCEED, ..Wanted::default() };
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
    let lines = |name| containerd.out(name).unwrap_or_default().lines().count();
    assert_eq!((lines("a"), lines("b")), (2, 3), "{}", plugin_log(&containerd));
    assert!(plugin_log(&containerd).contains("a.json:1:3: comment in JSON"));
}

#[test]
fn a_rejected_container_is_an_error_that_says_why() {
    use std::os::unix::fs::PermissionsExt as _;

    let containerd = Containerd::start_with_plugin(CONFIG);
    containerd.hook("a.json", "true", json!({"commands": ["true$"]}), &["poststart"]);
    let file = containerd.path("hooks.d/a.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let pod = containerd.pod("runc", &[]);
    let wanted = Wanted { command: SUCCEED, ..Wanted::default() };
    let error = containerd.create(&pod, "main", &wanted).unwrap_err();
    let expected = format!("(hint: chmod go-w {})", file.display());
    assert!(error.contains("oci-hooks-nri: a hook is writable"), "{error}");
    assert!(error.contains(&expected), "{error}");
    let other = Wanted { command: &["/bin/false"], ..Wanted::default() };
    assert_eq!(containerd.run(&containerd.create(&pod, "other", &other).unwrap()), 1);
    let ctr = ["--namespace", "k8s.io", "containers", "list", "--quiet"];
    assert_eq!(containerd.ctr(&ctr).stdout.lines().count(), 2, "the pod and the other container");
}

#[test]
fn a_mistake_in_the_configuration_of_the_plugin_is_in_the_log_of_containerd() {
    let mut containerd = Containerd::prepare_with_plugin("strikt = true\n");
    containerd.spawn_daemon();
    wait_until("the mistake in the log", || {
        containerd.log().contains("configuration of this plugin at 1:1: unknown field")
    });
    wait_until("the end of the CRI", || containerd.log().contains("level=fatal"));
}

#[test]
fn a_plugin_that_is_killed_and_comes_back_reports_what_it_missed() {
    let mut containerd = Containerd::start();
    containerd.hook("a.json", "echo >>\"$OUT/a\"", json!({"always": true}), &["poststart"]);
    let lines = |containerd: &Containerd| containerd.out("a").unwrap_or_default().lines().count();
    let run = |containerd: &Containerd, pod: &_, name: &str| {
        let wanted = Wanted { command: SUCCEED, ..Wanted::default() };
        let id = containerd.create(pod, name, &wanted).unwrap();
        assert_eq!(containerd.run(&id), 0);
        lines(containerd)
    };
    let plugin = External::start(&containerd);
    wait_for_connections(&containerd, 1);
    let pod = containerd.pod("runc", &[]);
    assert_eq!(run(&containerd, &pod, "guarded"), 1);
    drop(plugin);
    wait_until("the end of the connection", || containerd.log().contains("connection to plugin"));
    // The runtime tells plugins of containers that run.
    let wanted = Wanted { command: &["/bin/sleep", "1000"], ..Wanted::default() };
    containerd.start_container(&containerd.create(&pod, "missed", &wanted).unwrap());
    assert_eq!(lines(&containerd), 1);
    let _plugin = External::start(&containerd);
    wait_for_connections(&containerd, 2);
    assert_eq!(run(&containerd, &pod, "guarded-again"), 2);
    let log = plugin_log(&containerd);
    let reported: Vec<_> = log.lines().filter(|line| line.contains("exists without")).collect();
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
fn containers_of_ctr_are_none_of_nri() {
    let containerd = Containerd::start_with_plugin(CONFIG);
    containerd.hook("a.json", "echo >>\"$OUT/a\"", json!({"always": true}), &["poststart"]);
    let runc = crate::program::find("runc");
    let root = containerd.path("ctr-root");
    let fifos = containerd.path("ctr-fifo");
    let [runc, root, fifos] = [&runc, &root, &fifos].map(|path| path.to_str().unwrap());
    let options = ["--runc-binary", runc, "--runc-root", root, "--fifo-dir", fifos];
    let run = ["--namespace", "k8s.io", "run", "--rm", "--snapshotter", "native"];
    let what = [crate::image::IMAGE, "of-ctr", "/bin/echo", "ran"];
    let finished = containerd.ctr(&[&run[..], &options, &what].concat());
    assert_eq!(finished.success(), "ran\n");
    assert_eq!(containerd.out("a"), None);
    assert!(!plugin_log(&containerd).contains("of-ctr"));
}
