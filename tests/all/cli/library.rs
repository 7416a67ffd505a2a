//! The library examples about hooks, each run once.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::cli::env::{CONFIG, HookEnv};

#[path = "../../../examples/inject.rs"]
#[expect(dead_code, reason = "nobody calls its main")]
mod inject;
#[path = "../../../examples/monitor.rs"]
#[expect(dead_code, reason = "nobody calls its main")]
mod monitor;
#[path = "../../../examples/runtime.rs"]
#[expect(dead_code, reason = "no test calls its main")]
mod runtime;

/// Exceeds the delay of an event on a busy machine.
const DEADLINE: Duration = Duration::from_secs(600);

/// A writer that sends each write to a channel.
struct EventChannel(Sender<String>);

impl Write for EventChannel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.0.send(text).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn inject_example_adds_matching_hooks_with_reasons() {
    let env = HookEnv::with_hooks();
    let dirs = vec![env.path("usr"), env.path("etc")];
    let (mut out, mut log) = (Vec::new(), Vec::new());
    // Without the file whose program does not exist.
    fs::remove_file(env.path("usr/40-gone.json")).unwrap();
    inject::inject(&env.path("config.json"), dirs, &mut out, &mut log).unwrap();
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("10-python.json applies: "), "{log}");
    assert!(log.contains("20-gpu.json does not apply: "), "{log}");
    assert!(log.contains("not injected: 1 hooks of stage precreate"), "{log}");
    let config = String::from_utf8(out).unwrap();
    assert!(config.starts_with(CONFIG.trim_end().trim_end_matches(['}', '\n'])), "{config}");
    assert!(config.contains("\"createRuntime\": ["), "{config}");
}

#[test]
fn monitor_example_prints_changes() {
    let env = HookEnv::new();
    let dir = env.path("usr");
    let mut monitor = monitor::start(vec![dir.clone()]).unwrap();
    let stopper = monitor.stopper();
    let (sender, receiver) = channel();
    let follower = thread::spawn(move || {
        let mut out = io::LineWriter::new(EventChannel(sender));
        monitor::print_changes(&mut monitor, &mut out)
            .map_err(|error: Box<dyn Error>| error.to_string())
    });
    // Atomically: the monitor could read a file that is being written.
    env.hook("10-new.json", r#""always": true"#, r#""createRuntime""#);
    fs::rename(env.path("10-new.json"), dir.join("10-new.json")).unwrap();
    let first = receiver.recv_timeout(DEADLINE).unwrap();
    assert_eq!(first, format!("added {}\n", dir.join("10-new.json").display()));
    stopper.stop();
    follower.join().unwrap().unwrap();
}

#[test]
fn runtime_adds_hooks_to_a_typed_configuration() {
    let env = HookEnv::with_hooks();
    fs::remove_file(env.path("usr/30-filter.json")).unwrap();
    fs::remove_file(env.path("usr/40-gone.json")).unwrap();
    let text = CONFIG
        .replace("1.50e400", "1")
        .replace(r#""cwd""#, r#""user": {"uid": 0, "gid": 0}, "cwd""#);
    let mut spec = serde_json::from_str(&text).unwrap();
    let dirs = vec![env.path("usr"), env.path("etc")];
    runtime::add_hooks(&mut spec, &env.path("."), dirs).unwrap();
    let hooks = spec.hooks().as_ref().unwrap();
    let path = |hooks: &Option<Vec<oci_spec::runtime::Hook>>| {
        hooks.as_ref().map(|all| all[0].path().clone())
    };
    assert_eq!(path(hooks.create_runtime()), Some("/bin/true".into()));
    assert_eq!(path(hooks.poststop()), Some("/bin/true".into()));
}
