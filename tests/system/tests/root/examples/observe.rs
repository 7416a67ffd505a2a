//! Hooks that observe containers.

use std::fs;
use std::path::{Path, PathBuf};

use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::{RuntimeContainer, TestRuntime};
use serde_json::{Value, json};

use crate::examples::example::{HookExample, annotate};

/// A container that runs until it is deleted.
const WAIT: &str = "sleep 1000";

/// Starts a container that runs until deleted, and deletes it.
///
/// A container that exits on its own may do so during a `poststart` hook. crun then misses the exit of the
/// hook, and fails at its timeout.
fn start_and_delete(container: &RuntimeContainer<'_>) {
    container.create().success();
    container.start().success();
    container.delete().success();
}

fn log_file(bundle: &BusyboxBundle) -> PathBuf {
    bundle.path().join("hook.log")
}

fn lines(path: &Path) -> Vec<String> {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_owned).collect()
}

/// Mounts a directory of the bundle at `/data`.
fn share_directory(bundle: &BusyboxBundle) -> PathBuf {
    let source = bundle.path().join("shared");
    fs::create_dir(&source).expect("the bundle is ours");
    bundle.edit(|config| {
        config["mounts"].as_array_mut().expect("mounts").push(json!({
            "destination": "/data", "type": "bind", "source": source, "options": ["bind", "ro"],
        }));
    });
    source
}

#[test]
fn start_and_stop_are_logged_with_the_state() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new(WAIT);
        let log = log_file(&bundle);
        HookExample::read("more/90-lifecycle-log").with_env("LOG_FILE", &log).inject(&bundle);
        let container = RuntimeContainer::new(runtime, &bundle);
        start_and_delete(&container);
        let states: Vec<Value> = lines(&log)
            .iter()
            .map(|line| {
                let (time, state) = line.split_once(' ').expect("a time and a state");
                assert!(time.len() == 20 && time.ends_with('Z'), "{runtime}: {time}");
                serde_json::from_str(state).expect("the state is JSON")
            })
            .collect();
        assert_eq!(states.len(), 2, "{runtime}");
        assert_eq!(states[0]["id"], container.id(), "{runtime}");
        assert_eq!(states[1]["status"], "stopped", "{runtime}");
    }
}

#[test]
fn unwritable_log_does_not_end_the_container() {
    for runtime in TestRuntime::ALL {
        for example in [
            "more/90-lifecycle-log",
            "more/90-mount-audit",
            "more/90-oom-report",
            "more/90-trace-stages",
        ] {
            let bundle = BusyboxBundle::new(&format!("echo ran >/ran; {WAIT}"));
            annotate(&bundle, "com.example.trace-stages", "true");
            share_directory(&bundle);
            let log = bundle.path().join("missing/hook.log");
            HookExample::read(example).with_env("LOG_FILE", &log).inject(&bundle);
            let container = RuntimeContainer::new(runtime, &bundle);
            container.create().success();
            container.start().success();
            let ran = bundle.inside("/ran");
            program::wait_until("the container runs", || {
                fs::read_to_string(&ran).is_ok_and(|text| text == "ran\n")
            });
            assert_eq!(container.state()["status"], "running", "{runtime} {example}");
            container.delete().success();
        }
    }
}

#[test]
fn only_bind_mounts_are_audited() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new(WAIT);
        let source = share_directory(&bundle);
        let log = log_file(&bundle);
        HookExample::read("more/90-mount-audit").with_env("LOG_FILE", &log).inject(&bundle);
        let container = RuntimeContainer::new(runtime, &bundle);
        container.create().success();
        container.start().success();
        let lines = lines(&log);
        let [line] = lines.as_slice() else { panic!("{runtime}: {lines:?}") };
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[1..5], [container.id(), "/data", "ro", "from"], "{runtime}");
        assert!(source.ends_with(words[5].trim_start_matches('/')), "{runtime}: {line}");
    }
}

#[test]
fn process_killed_for_memory_is_reported() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("tail /dev/zero; echo survived");
        bundle.edit(|config| {
            let bytes = 16 << 20;
            config["linux"]["resources"]["memory"] = json!({"limit": bytes, "swap": bytes});
        });
        let log = log_file(&bundle);
        HookExample::read("more/90-oom-report").with_env("LOG_FILE", &log).inject(&bundle);
        let container = RuntimeContainer::new(runtime, &bundle);
        container.run().success();
        let lines = lines(&log);
        let [line] = lines.as_slice() else { panic!("{runtime}: {lines:?}") };
        let report = format!("{} out of memory: tail", container.id());
        assert!(line.ends_with(&report), "{runtime}: {line}");
    }
}

#[test]
fn running_container_is_registered() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new(WAIT);
        let directory = bundle.path().join("pids");
        HookExample::read("more/90-pid-registry").with_env("DIRECTORY", &directory).inject(&bundle);
        let container = RuntimeContainer::new(runtime, &bundle);
        // Without a check in between: most versions of runc run poststart hooks at creation.
        container.create().success();
        container.start().success();
        let registered = directory.join(container.id());
        assert_eq!(lines(&registered), [container.pid().to_string()], "{runtime}");
        container.delete().success();
        assert_eq!(fs::read_dir(&directory).expect("it stays").count(), 0, "{runtime}");
    }
}

#[test]
fn stages_are_traced_in_their_order() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new(WAIT);
        annotate(&bundle, "com.example.trace-stages", "true");
        let log = log_file(&bundle);
        HookExample::read("more/90-trace-stages").with_env("LOG_FILE", &log).inject(&bundle);
        let container = RuntimeContainer::new(runtime, &bundle);
        start_and_delete(&container);
        let lines = lines(&log);
        let own = fs::read_link("/proc/self/ns/net").expect("a namespace");
        let networks: Vec<_> = lines
            .iter()
            .filter_map(|line| line.strip_prefix("  net:"))
            .map(|name| own.as_os_str() == format!("net:{name}").as_str())
            .collect();
        // Only createContainer hooks run in the container's namespaces.
        assert_eq!(networks, [true, false, true, true], "{runtime}: {lines:#?}");
        assert!(lines.iter().all(|line| line.starts_with("  ") || line.ends_with(container.id())));
    }
}
