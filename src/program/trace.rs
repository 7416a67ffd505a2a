//! What a program reports of its work while it does it: the library's events (`tracing`), by level.
//!
//! They are off unless they were asked for; then an event costs the comparison of two numbers.

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

/// Whose events are reported: libraries for HTTP and gRPC have their own, in which there may be headers
/// with logins.
const TARGETS: [&str; 6] = [
    "oci_hooks",
    "oci_hooks_runtime",
    "oci_hooks_nri",
    "container_hook",
    "step_runner",
    "garm_provider_runc",
];

/// Chooses levels by module, as `debug` or `oci_hooks::network=trace,info`.
const VARIABLE: &str = "RUST_LOG";

/// Reports events on standard error: those of a level and the levels above it, or those that `RUST_LOG`
/// names if no level is given. To be called once.
pub fn to_stderr(level: Option<LevelFilter>) {
    let Some(targets) = targets(level) else { return };
    let lines = fmt::layer().with_ansi(false).with_writer(io::stderr);
    tracing_subscriber::registry().with(targets).with(filter_fn(is_own)).with(lines).init();
}

/// Reports the library's warnings, such as of a process that holds up this one, on standard error; if a level is given
/// or `RUST_LOG` is set, events as [`to_stderr`] does. To be called once.
pub fn with_warnings_to_stderr(level: Option<LevelFilter>) {
    match is_asked_for(level) {
        true => to_stderr(level),
        // If standard error is gone there is nobody to tell.
        false => warnings_to(|line| drop(writeln!(io::stderr().lock(), "warning: {line}"))),
    }
}

/// Adds events, chosen as by [`to_stderr`], to a file. To be called once.
pub fn to_file(level: Option<LevelFilter>, file: File) {
    let Some(targets) = targets(level) else { return };
    let lines = fmt::layer().with_ansi(false).with_writer(Mutex::new(file));
    tracing_subscriber::registry().with(targets).with(filter_fn(is_own)).with(lines).init();
}

/// Passes events, chosen as by [`to_stderr`], to `write`, each as a line. To be called once.
pub fn to_lines(level: Option<LevelFilter>, write: fn(&str)) {
    let Some(targets) = targets(level) else { return };
    let lines = fmt::layer().with_ansi(false).without_time().with_writer(Lines(write));
    tracing_subscriber::registry().with(targets).with(filter_fn(is_own)).with(lines).init();
}

/// Passes the library's warnings, each as a line, to `write`. To be called once.
pub fn warnings_to(write: fn(&str)) {
    let targets = Targets::new().with_target("oci_hooks::", LevelFilter::WARN);
    let lines = fmt::layer().with_ansi(false).without_time().with_level(false).with_target(false);
    let lines = lines.with_writer(Lines(write));
    tracing_subscriber::registry().with(targets).with(lines).init();
}

/// Returns whether events are to be reported that are not warnings.
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
            // If standard error is gone there is nobody to tell.
            let _ = writeln!(
                io::stderr().lock(),
                "warning: invalid {VARIABLE} {text:?}: {error}: expected a level, for example \
                 debug, or levels by module, for example oci_hooks::network=trace"
            );
            None
        }
    }
}

/// Returns whether an event is this package's.
fn is_own(metadata: &Metadata<'_>) -> bool {
    let crate_name = metadata.target().split("::").next();
    crate_name.is_some_and(|name| TARGETS.contains(&name))
}

/// Gets events as texts that end with a line break.
#[derive(Clone, Copy)]
struct Lines(fn(&str));

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(String::from_utf8_lossy(bytes).trim_end());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}
