//! Follows hook directories as a daemon does: prints what changes, while other threads match against the
//! hooks that are in force. Ctrl-C ends it.
//!
//! ```text
//! cargo run --example monitor -- hooks.d-examples
//! ```
//!
//! A file that becomes invalid keeps its last valid content in force until it is fixed or removed.

use std::env;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;

use oci_hooks::hooks::monitor::{Monitor, MonitorOptions, Wake};
use oci_hooks::hooks::{LoadOptions, Target, consumer::PODMAN};

fn main() -> Result<(), Box<dyn Error>> {
    let dirs: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let mut monitor = start(dirs)?;

    // Any thread that creates containers has a handle of its own. A snapshot does not change in its hands.
    let current = monitor.current();
    let (loaded, target) = (current.snapshot(), Target::default());
    let selection = loaded.hooks.select(&target, &PODMAN)?;
    let mut out = io::stdout();
    writeln!(out, "{} hooks, {} for any container", loaded.hooks.len(), selection.files.len())?;

    print_changes(&mut monitor, &mut out)
}

/// Loads the hooks of these directories and watches them; those of podman if none is named.
pub(crate) fn start(dirs: Vec<PathBuf>) -> Result<Monitor, Box<dyn Error>> {
    let mut load = LoadOptions::for_consumer(&PODMAN);
    if !dirs.is_empty() {
        load.dirs = dirs;
    }
    Ok(Monitor::new(MonitorOptions { load, ..Default::default() })?)
}

/// Prints what becomes of hook files until `Monitor::stopper` ends it.
///
/// A program with an event loop waits for the monitor's descriptor instead, and calls `Monitor::poll`.
pub(crate) fn print_changes(
    monitor: &mut Monitor,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    while let Wake::Changed(changes) = monitor.wait(None)? {
        for change in changes {
            writeln!(out, "{} {}", change.kind.name(), change.path.display())?;
        }
        for problem in &monitor.snapshot().problems {
            writeln!(out, "problem: {problem}: {}", problem.source)?;
        }
    }
    Ok(())
}
