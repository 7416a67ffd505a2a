//! Follows hook directories as a daemon does, and prints changes. Ctrl-C ends it.
//!
//! ```text
//! cargo run --example monitor -- hooks.d-examples
//! ```
//!
//! The hook of a file that becomes invalid is dropped, as podman does.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use oci_hooks::hooks::monitor::{Monitor, MonitorOptions, WakeReason};
use oci_hooks::hooks::{LoadOptions, MatchTarget, consumer::PODMAN};

fn main() -> Result<(), Box<dyn Error>> {
    let dirs: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let mut monitor = start(dirs)?;

    // Other threads can match against snapshots from clones of this handle. A snapshot never changes.
    let current = monitor.current_hooks();
    let (loaded, target) = (current.snapshot(), MatchTarget::default());
    let selection = loaded.hooks.select(&target, &PODMAN)?;
    let mut out = io::stdout();
    writeln!(out, "{} hooks, {} for any container", loaded.hooks.len(), selection.files.len())?;

    print_changes(&mut monitor, &mut out)
}

/// Loads the hooks of these directories and watches them. Without directories, those of podman are read.
pub(crate) fn start(dirs: Vec<PathBuf>) -> Result<Monitor, Box<dyn Error>> {
    let mut load = LoadOptions::for_consumer(&PODMAN);
    if !dirs.is_empty() {
        load.dirs = dirs;
    }
    Ok(Monitor::new(MonitorOptions { load, ..Default::default() })?)
}

/// Prints changes of hook files until `Monitor::stopper` ends it.
///
/// A program with an event loop waits for the monitor's descriptor instead, and calls `Monitor::poll`.
pub(crate) fn print_changes(
    monitor: &mut Monitor,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    while let WakeReason::Changed(changes) = monitor.wait(None)? {
        for change in changes {
            writeln!(out, "{} {}", change.kind.name(), change.path.display())?;
        }
        for problem in &monitor.snapshot().problems {
            writeln!(out, "problem: {problem}: {}", problem.source)?;
        }
    }
    Ok(())
}
