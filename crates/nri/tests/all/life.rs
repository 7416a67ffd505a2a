//! Start, reconnection and end of the plugin.

use std::fs;
use std::process::Command;

use oci_hooks_nri::wire::ttrpc::Status;
use oci_hooks_testsupport::completion::complete_words;
use oci_hooks_testsupport::program::{self, wait_until};
use rustix::process::Signal;

use crate::plugin::{PluginDir, accept, container, exists};
use crate::runtime::SimulatedRuntime;

const ALWAYS: &str = r#"{"always": true}"#;

#[test]
fn plugin_started_by_the_runtime_exits_with_it() {
    let place = PluginDir::new();
    let (plugin, socket) = place.start(&[]);
    let mut runtime = SimulatedRuntime::new(socket);
    assert_eq!(runtime.register(), "42-hooks");
    assert_eq!(runtime.configure(""), Ok(8));
    drop(runtime);
    let (status, stderr) = plugin.wait_for_end();
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""), "{}", place.log());
}

#[test]
fn signals_stop_the_plugin_cleanly() {
    let place = PluginDir::new();
    let (plugin, mut runtime) = place.start_accepted(&[]);
    plugin.signal(Signal::TERM);
    assert!(plugin.wait_for_end().0.success());
    assert!(runtime.message().is_none());
    let waiting = place.start_external(&[]);
    place.wait_for_log("not connected to a runtime: trying again");
    waiting.signal(Signal::INT);
    assert!(waiting.wait_for_end().0.success());
    let metrics = fs::read_to_string(place.path("metrics.prom")).unwrap();
    assert!(metrics.contains("\noci_hooks_nri_connected 0\n"), "{metrics}");
}

#[test]
fn configuration_of_the_runtime_is_used_and_errors_end_the_plugin() {
    let place = PluginDir::new();
    place.hook("a.json", ALWAYS, r#"["poststop"]"#);
    place.write("b.json", "{");
    let (plugin, socket) = place.start(&[]);
    let mut runtime = SimulatedRuntime::accept(socket, "strict = true\n");
    let (_, error) = runtime.create(None, container("/bin/sh")).unwrap_err();
    assert!(error.contains("b.json:1:"), "{error}");
    drop(plugin);

    let (plugin, socket) = place.start(&[]);
    let mut runtime = SimulatedRuntime::new(socket);
    runtime.register();
    let (_, error) = runtime.configure("strict = true\nstrikt = true\n").unwrap_err();
    assert!(error.contains("configuration of this plugin at 2:1: unknown field"), "{error}");
    let (_, rejected) = runtime.create(None, container("/bin/sh")).unwrap_err();
    assert_eq!(rejected, "oci-hooks-nri: the plugin has no valid configuration from the runtime");
    drop(runtime);
    let (status, stderr) = plugin.wait_for_end();
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("at 2:1: unknown field"), "{stderr}");
}

#[test]
fn plugin_connects_and_reconnects_when_the_runtime_appears() {
    let place = PluginDir::new();
    place.hook("a.json", ALWAYS, r#"["poststop"]"#);
    let plugin = place.start_external(&["--name", "mine", "--idx", "07"]);
    place.wait_for_log("not connected to a runtime: trying again");
    for round in 0..3 {
        let listener = place.listen();
        let mut runtime = accept(&listener);
        assert_eq!(runtime.create(None, container("/bin/sh")).unwrap().poststop.len(), 1);
        // The runtime ends without a message, as if killed.
        drop((runtime, listener));
        wait_until("the end of the connection", || {
            place.log().matches("the runtime closed the connection").count() == round + 1
        });
        fs::remove_file(place.path("nri.sock")).unwrap();
    }
    let log = place.log();
    assert_eq!(log.matches("registered plugin=07-mine").count(), 3, "{log}");
    plugin.signal(Signal::TERM);
    assert!(plugin.wait_for_end().0.success());
}

#[test]
fn rejected_registration_is_retried() {
    let place = PluginDir::new();
    let listener = place.listen();
    let _plugin = place.start_external(&[]);
    let (socket, _) = listener.accept().unwrap();
    let mut runtime = SimulatedRuntime::new(socket);
    runtime.answer_registration(Status { code: 2, message: "not now".to_owned() });
    assert!(runtime.message().is_none());
    place.wait_for_log("the runtime rejected the registration as 10-oci-hooks-nri: not now");
    accept(&listener).create(None, container("/bin/sh")).unwrap();
}

#[test]
fn invalid_usage_is_reported() {
    let run = |arguments: &[&str], variable: Option<(&str, &str)>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks-nri"));
        let finished = program::run(command.args(arguments).env_clear().envs(variable));
        (finished.status.code(), finished.failure())
    };
    let (code, error) = run(&["--idx", "1"], None);
    assert_eq!(code, Some(2));
    assert!(error.contains("expected two digits"), "{error}");
    assert_eq!(run(&["--name", "a/b"], None).0, Some(2));
    for number in ["x", "0", "999"] {
        let (code, error) = run(&[], Some(("NRI_PLUGIN_SOCKET", number)));
        assert_eq!(code, Some(1));
        assert!(error.contains("invalid NRI_PLUGIN_SOCKET"), "{error}");
    }
}

#[test]
fn a_shell_completes_options() {
    let program = env!("CARGO_BIN_EXE_oci-hooks-nri");
    let found = complete_words(program, None, &["--log-"]);
    assert_eq!(found, ["--log-file", "--log-level"]);
}

#[test]
fn metrics_are_written_while_the_plugin_runs() {
    let place = PluginDir::new();
    place.hook("a.json", ALWAYS, r#"["poststop", "poststart"]"#);
    let (_plugin, mut runtime) = place.start_accepted(&[]);
    for _ in 0..3 {
        runtime.create(None, container("/bin/sh")).unwrap();
    }
    let file = place.path("metrics.prom");
    wait_until("the metrics", || {
        let text = if exists(&file) { fs::read_to_string(&file).unwrap() } else { String::new() };
        [
            "oci_hooks_nri_containers_total{result=\"injected\"} 3\n",
            "oci_hooks_nri_matched_hooks_total 3\n",
            "oci_hooks_nri_injected_hooks_total{stage=\"poststart\"} 3\n",
            "oci_hooks_nri_hooks 1\n",
            "oci_hooks_nri_connected 1\n",
            "oci_hooks_nri_create_container_seconds_count 3\n",
        ]
        .iter()
        .all(|line| text.contains(line))
    });
}
