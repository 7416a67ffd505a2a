//! The log of a step, as GitHub's runner reads it: each line of ours may be a workflow command.
//!
//! The runner looks for commands in every line of standard output and standard error: `::name::` at
//! the beginning of a line, `##[name]` anywhere in it. What others wrote must not become one.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use oci_hooks::container_hook;
use oci_hooks::image::{Progress, ProgressEvent};
use oci_hooks::program::exit::Exit;
use oci_hooks::program::progress::Lines;
use oci_hooks::program::trace::{self, LevelFilter};
use oci_hooks::sys::error::{chain, is_full};
use oci_hooks::sys::fs::random_u64;

use crate::environment;

/// The hint for a full disk.
pub const FULL: &str = "the file system is full: free some space; `container-hook prune --all` removes all images that \
     no job uses";

/// Does what goes to the log of a step, and tells why it cannot be done.
pub fn report<E: Error + 'static>(run: impl FnOnce(&Log) -> Result<Exit, E>) -> ExitCode {
    let debug = environment::wants_debug();
    match debug {
        true => trace::to_lines(Some(LevelFilter::DEBUG), |line| write(&command("debug", line))),
        false if trace::is_asked_for(None) => trace::to_lines(None, |line| write(&plain(line))),
        false => trace::warnings_to(|line| write(&command("warning", line))),
    }
    let log = Log { debug, progress: Lines::default() };
    run(&log)
        .unwrap_or_else(|error| {
            let mut text = chain(&error);
            if is_full(&error) {
                text = format!("{text}; {FULL}");
            }
            write(&command("error", &text));
            Exit::Findings
        })
        .into()
}

/// Writes workflow commands and plain lines to standard output.
pub struct Log {
    /// True if the runner shows debug messages.
    debug: bool,
    progress: Lines,
}

impl Log {
    /// Says why a step failed that ends with a code of its own.
    pub fn error(&self, text: &str) {
        write(&command("error", text));
    }
}

impl container_hook::Log for Log {
    fn group(&self, title: &str) {
        write(&command("group", title));
    }

    fn end_group(&self) {
        write("::endgroup::\n");
    }

    fn line(&self, text: &str) {
        write(&plain(text));
    }

    fn warning(&self, text: &str) {
        write(&command("warning", text));
    }

    fn debug(&self, text: &str) {
        if self.debug {
            write(&command("debug", text));
        }
    }

    fn output(&self, name: &str, text: &[u8]) {
        write(&quoted(name, &String::from_utf8_lossy(text), random_u64()));
    }
}

impl Progress for Log {
    fn event(&self, event: ProgressEvent<'_>) {
        if let Some(text) = event.outdated() {
            write(&command("warning", &text));
        } else if let Some(line) = self.progress.take(&event) {
            write(&plain(&line));
        }
    }
}

/// Returns a workflow command with text as its data.
fn command(name: &str, text: &str) -> String {
    let data = text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    format!("::{name}::{data}\n")
}

/// Returns lines none of which is a command.
fn plain(text: &str) -> String {
    let mut out = String::new();
    // A lone carriage return would let what follows overwrite the line in a terminal.
    for line in text.split(['\n', '\r']) {
        let line = line.replace("##[", "## [");
        let start = if line.trim_start().starts_with("::") { "> " } else { "" };
        writeln!(out, "{start}{line}").expect("strings take everything");
    }
    out
}

/// Returns what a container wrote, between commands that have the runner look for none.
fn quoted(name: &str, text: &str, token: u64) -> String {
    let mut out = format!("::stop-commands::{token:016x}\n");
    for line in text.lines() {
        writeln!(out, "{name} | {}", line.trim_end_matches('\r')).expect("strings take everything");
    }
    writeln!(out, "::{token:016x}::").expect("strings take everything");
    out
}

/// Writes all at once, so that lines of others do not come in between.
fn write(text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::write(rustix::stdio::stdout(), rest)) {
            Ok(count) => rest = &rest[count..],
            // Without standard output the error cannot be reported.
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_of_a_command_stays_on_its_line() {
        assert_eq!(
            command("error", "100%\r\n::set-env name=A::b"),
            "::error::100%25%0D%0A::set-env name=A::b\n"
        );
    }

    #[test]
    fn a_plain_line_is_never_a_command() {
        assert_eq!(plain("a\n  ::add-mask::x"), "a\n>   ::add-mask::x\n");
        assert_eq!(plain("a ##[group]b\r::error::"), "a ## [group]b\n> ::error::\n");
    }

    #[test]
    fn what_a_container_wrote_is_between_commands_that_it_cannot_know() {
        assert_eq!(
            quoted("redis", "::error::x\r\ny", 0xab),
            "::stop-commands::00000000000000ab\nredis | ::error::x\nredis | y\n::00000000000000ab::\n"
        );
    }
}
