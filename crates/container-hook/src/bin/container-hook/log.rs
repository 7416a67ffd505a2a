//! The log of a step. GitHub's runner parses workflow commands in every line of standard output and standard
//! error: `::name::` at the beginning of a line, `##[name]` anywhere in it. Untrusted output must not become
//! a command.

use std::fmt::Write as _;
use std::process::ExitCode;

use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::trace::{self, LevelFilter};
use oci_hooks_engine_cli::progress::ProgressLines;
use oci_hooks_files::error::{chain, is_full};
use oci_hooks_files::fs::random_u64;
use oci_hooks_image::{ProgressEvent, PullProgress};

use crate::environment;
use crate::error::HookCommandError;

/// Hint for a full disk.
pub const FULL: &str = "the file system is full: free some space; `container-hook prune --all` removes all images that \
     no job uses";

/// Runs a command that writes to a step's log, and logs its error.
pub fn report(run: impl FnOnce(&StepLog) -> Result<CliExit, HookCommandError>) -> ExitCode {
    match environment::wants_debug() {
        true => trace::to_lines(Some(LevelFilter::DEBUG), |line| write(&command("debug", line))),
        false if trace::is_asked_for(None) => trace::to_lines(None, |line| write(&plain(line))),
        false => trace::warnings_to(|line| write(&command("warning", line))),
    }
    let log = StepLog { progress: ProgressLines::default() };
    run(&log)
        .unwrap_or_else(|error| {
            let mut text = chain(&error);
            if is_full(&error) {
                text = format!("{text}; {FULL}");
            }
            write(&command("error", &text));
            CliExit::Findings
        })
        .into()
}

/// Writes workflow commands and plain lines to standard output.
pub struct StepLog {
    progress: ProgressLines,
}

impl StepLog {
    /// Logs the reason why a step with its own exit code failed.
    pub fn error(&self, text: &str) {
        write(&command("error", text));
    }
}

impl container_hook_job::HookLog for StepLog {
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
        tracing::debug!("{text}");
    }

    fn output(&self, name: &str, text: &[u8]) {
        write(&quote_output(name, &String::from_utf8_lossy(text), random_u64()));
    }
}

impl PullProgress for StepLog {
    fn event(&self, event: ProgressEvent<'_>) {
        if let Some(text) = event.outdated_warning() {
            write(&command("warning", &text));
        } else if let Some(line) = self.progress.take(&event) {
            write(&plain(&line));
        }
    }
}

/// Returns a workflow command with escaped data.
fn command(name: &str, text: &str) -> String {
    let data = text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    format!("::{name}::{data}\n")
}

/// Returns the text as lines that the runner does not parse as commands.
fn plain(text: &str) -> String {
    let mut out = String::new();
    // A lone carriage return would let later text overwrite the line in a terminal.
    for line in text.split(['\n', '\r']) {
        let line = line.replace("##[", "## [");
        let start = if line.trim_start().starts_with("::") { "> " } else { "" };
        writeln!(out, "{start}{line}").expect("strings take everything");
    }
    out
}

/// Quotes the output of a container between `::stop-commands::` lines.
fn quote_output(name: &str, text: &str, token: u64) -> String {
    let mut out = format!("::stop-commands::{token:016x}\n");
    for line in text.lines() {
        writeln!(out, "{name} | {}", line.trim_end_matches('\r')).expect("strings take everything");
    }
    writeln!(out, "::{token:016x}::").expect("strings take everything");
    out
}

/// Writes the text at once, so that it is not mixed with other lines.
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
    fn command_data_stays_on_one_line() {
        assert_eq!(
            command("error", "100%\r\n::set-env name=A::b"),
            "::error::100%25%0D%0A::set-env name=A::b\n"
        );
    }

    #[test]
    fn plain_line_is_never_a_command() {
        assert_eq!(plain("a\n  ::add-mask::x"), "a\n>   ::add-mask::x\n");
        assert_eq!(plain("a ##[group]b\r::error::"), "a ## [group]b\n> ::error::\n");
    }

    #[test]
    fn container_output_is_enclosed_in_unpredictable_stop_commands() {
        assert_eq!(
            quote_output("redis", "::error::x\r\ny", 0xab),
            "::stop-commands::00000000000000ab\nredis | ::error::x\nredis | y\n::00000000000000ab::\n"
        );
    }
}
