//! The examples of the library that have to do with hooks, each run once.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use crate::env::{CONFIG, TestEnv};

#[path = "../../examples/inject.rs"]
#[expect(dead_code, reason = "nobody calls its main")]
mod inject;
#[path = "../../examples/monitor.rs"]
#[expect(dead_code, reason = "nobody calls its main")]
mod monitor;

/// Longer than an event takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// Passes on each write.
struct Channel(Sender<String>);

impl Write for Channel {
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
fn inject_adds_what_applies_and_says_why() {
    let env = TestEnv::with_hooks();
    let dirs = vec![env.path("usr"), env.path("etc")];
    let (mut out, mut log) = (Vec::new(), Vec::new());
    // This one podman rejects with all others.
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
fn monitor_prints_what_changes() {
    let env = TestEnv::new();
    let dir = env.path("usr");
    let mut monitor = monitor::start(vec![dir.clone()]).unwrap();
    let stopper = monitor.stopper();
    let (sender, receiver) = channel();
    let follower = thread::spawn(move || {
        let mut out = io::LineWriter::new(Channel(sender));
        monitor::print_changes(&mut monitor, &mut out)
            .map_err(|error: Box<dyn Error>| error.to_string())
    });
    env.hook("usr/10-new.json", r#""always": true"#, r#""createRuntime""#);
    let first = receiver.recv_timeout(DEADLINE).unwrap();
    assert_eq!(first, format!("added {}\n", dir.join("10-new.json").display()));
    stopper.stop();
    follower.join().unwrap().unwrap();
}
