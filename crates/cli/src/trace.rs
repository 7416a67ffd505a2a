//! Logging: `tracing` events of the libraries, filtered by level.
//!
//! Logging is off by default; a disabled event costs the comparison of two numbers.

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::str::FromStr as _;
use std::sync::Mutex;

use tracing::Metadata;
pub use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::{Targets, filter_fn};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Name prefixes of the crates whose events are logged. Events of HTTP and gRPC libraries may contain headers with
/// credentials.
const CRATES: [&str; 4] = ["oci_hooks", "container_hook", "garm_provider_runc", "step_runner"];

/// Environment variable with a level, or levels by module, for example `oci_hooks_engine::network=trace,info`.
const VARIABLE: &str = "RUST_LOG";

/// Logs events to standard error: events of `level` and more severe ones, or those selected by `RUST_LOG` if no level
/// is given. Must be called only once.
pub fn to_stderr(level: Option<LevelFilter>) {
    let Some(targets) = targets(level) else { return };
    let lines = fmt::layer().with_ansi(false).with_writer(io::stderr);
    tracing_subscriber::registry().with(targets).with(filter_fn(is_own)).with(lines).init();
}

/// Prints the libraries' warnings to standard error, for example about a process that this one waits for. If a level is
/// given or `RUST_LOG` is set, logs events like [`to_stderr`] instead. Must be called only once.
pub fn print_warnings_to_stderr(level: Option<LevelFilter>) {
    match is_asked_for(level) {
        true => to_stderr(level),
        // If standard error is closed, warnings cannot be reported.
        false => warnings_to(|line| drop(writeln!(io::stderr().lock(), "warning: {line}"))),
    }
}

/// Appends events, selected as by [`to_stderr`], to a file. Must be called only once.
pub fn to_file(level: Option<LevelFilter>, file: File) {
    let Some(targets) = targets(level) else { return };
    let lines = fmt::layer().with_ansi(false).with_writer(Mutex::new(file));
    tracing_subscriber::registry().with(targets).with(filter_fn(is_own)).with(lines).init();
}

/// Passes events, selected as by [`to_stderr`], to `write`, each as a line with the time since this call. Must be called
/// only once.
pub fn to_lines(level: Option<LevelFilter>, write: fn(&str)) {
    let Some(targets) = targets(level) else { return };
    let lines = fmt::layer()
        .with_ansi(false)
        .with_timer(fmt::time::uptime())
        .with_writer(EventWriter(write));
    tracing_subscriber::registry().with(targets).with(filter_fn(is_own)).with(lines).init();
}

/// Passes the libraries' warnings, each as a line, to `write`. Must be called only once.
pub fn warnings_to(write: fn(&str)) {
    let targets = Targets::new().with_targets(CRATES.map(|name| (name, LevelFilter::WARN)));
    let lines = fmt::layer().with_ansi(false).without_time().with_level(false).with_target(false);
    let lines = lines.with_writer(EventWriter(write));
    tracing_subscriber::registry().with(targets).with(lines).init();
}

/// Returns whether a level is given or `RUST_LOG` is set.
pub fn is_asked_for(level: Option<LevelFilter>) -> bool {
    level.is_some() || env::var_os(VARIABLE).is_some_and(|text| !text.is_empty())
}

fn targets(level: Option<LevelFilter>) -> Option<Targets> {
    if let Some(level) = level {
        return Some(Targets::new().with_default(level));
    }
    let text = env::var(VARIABLE).ok().filter(|text| !text.is_empty())?;
    match Targets::from_str(&text) {
        Ok(targets) => Some(targets),
        Err(error) => {
            // If standard error is closed, the warning cannot be reported.
            let _ = writeln!(
                io::stderr().lock(),
                "warning: invalid {VARIABLE} {text:?}: {error}: expected a level, for example \
                 debug, or levels by module, for example oci_hooks_engine::network=trace"
            );
            None
        }
    }
}

/// Returns whether an event belongs to a crate of this workspace.
fn is_own(metadata: &Metadata<'_>) -> bool {
    CRATES.iter().any(|name| metadata.target().starts_with(name))
}

/// Writer that passes each event to a function, without the trailing newline.
#[derive(Clone, Copy)]
struct EventWriter(fn(&str));

impl Write for EventWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(String::from_utf8_lossy(bytes).trim_end());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for EventWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}
