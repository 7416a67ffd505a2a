//! What a runtime says when it fails, and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::sys::process::RunError;

/// What a runtime was called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the names of the subcommands")]
pub enum Action {
    Run,
    Exec,
    Kill,
    Pause,
    Resume,
    Delete,
    State,
    Version,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Run => "run",
            Action::Exec => "execute a process in",
            Action::Kill => "kill",
            Action::Pause => "pause",
            Action::Resume => "resume",
            Action::Delete => "delete",
            Action::State => "tell the state of",
            Action::Version => "tell its version for",
        })
    }
}

/// A call of a runtime that did not do what it was for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The runtime could not be run.
    #[error(transparent)]
    Execute(#[from] RunError),
    /// It ended with an error.
    #[error("{} cannot {action} container {id}: {message}{}", program.display(), Hint(*hint))]
    Failed {
        program: PathBuf,
        /// What it was called for.
        action: Action,
        id: String,
        /// What it said, on one line.
        message: String,
        hint: Option<&'static str>,
    },
    /// It did not end in time.
    #[error("{} did not {action} container {id} within {seconds} seconds", program.display())]
    TimedOut {
        program: PathBuf,
        /// What it was called for.
        action: Action,
        id: String,
        seconds: u64,
    },
    /// Its answer could not be understood.
    #[error("malformed output of {} for {action} of a container", program.display())]
    Answer {
        program: PathBuf,
        /// What it was called for.
        action: Action,
        source: serde_json::Error,
    },
}

struct Hint(Option<&'static str>);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

impl RuntimeError {
    /// Returns the error for what a runtime wrote, as text or as a log of JSON lines.
    pub fn failed(program: &Path, action: Action, id: &str, output: &[u8]) -> Self {
        let message = message(&String::from_utf8_lossy(output));
        let hint = hint(&message);
        RuntimeError::Failed {
            program: program.to_owned(),
            action,
            id: id.chars().take(12).collect(),
            message,
            hint,
        }
    }
}

#[derive(Deserialize)]
struct Line {
    level: String,
    msg: String,
}

/// Returns what of an output is the error: the last entry of a log that is one, after those that made
/// it end, or all lines.
fn message(output: &str) -> String {
    let entries = output.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let (mut fatal, rest): (Vec<Line>, Vec<Line>) = entries.partition(|line| line.level == "fatal");
    // runc's first part writes the one, the rest of it then only that the first part is gone.
    fatal.extend(rest.into_iter().rfind(|line| line.level == "error"));
    let text = match fatal.is_empty() {
        false => fatal.into_iter().map(|line| line.msg).collect::<Vec<_>>().join("; "),
        true => {
            let lines = output.lines().map(|line| {
                // `time="…" level=error msg="…"`
                let quoted = line.split_once("msg=\"").and_then(|(_, text)| text.strip_suffix('"'));
                quoted.map_or_else(|| line.trim().to_owned(), |text| text.replace("\\\"", "\""))
            });
            let mut lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
            lines.dedup();
            lines.join("; ")
        }
    };
    if text.is_empty() { "it said nothing".to_owned() } else { text }
}

/// Parts of messages of runc, crun and youki in lower case, and what helps.
const HINTS: [(&str, &str); 12] = [
    (
        "cgroups in hybrid mode",
        "crun does not take a host with cgroup v1 and v2 at once: boot with \
         systemd.unified_cgroup_hierarchy=1, or use runc",
    ),
    ("seccomp", "the runtime may be built without seccomp or with an old libseccomp: update both"),
    (
        "rlimit",
        "a limit is higher than this process may set: lower it, or raise the limit of the runner's \
         service, for example LimitNOFILE= in its unit",
    ),
    ("oom_score_adj", "the score is lower than this process may set: remove --oom-score-adj"),
    (
        "executable file",
        "the image has no such program in its PATH: check the entry point and the image",
    ),
    ("open executable", NOT_EXECUTABLE),
    (
        "exec format error",
        "the image is for another CPU architecture, or a script has no #! line: check --platform",
    ),
    ("exec: \"", NOT_EXECUTABLE),
    (
        "read-only file system",
        "a directory the runtime needs is mounted read-only: if it is a cgroup, see container-hook \
         doctor",
    ),
    ("pivot_root", "the store must not be on the initial ramfs"),
    ("no space left on device", "free some disk, or run container-hook prune"),
    (
        "operation not permitted",
        "the runtime lacks a right, as it does inside of another container: see container-hook doctor",
    ),
];

const NOT_EXECUTABLE: &str =
    "the image has no such program that its user may execute: check the entry point and the image";

fn hint(message: &str) -> Option<&'static str> {
    let message = message.to_lowercase();
    HINTS.iter().find(|(part, _)| message.contains(part)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &str) -> String {
        RuntimeError::failed(
            Path::new("/usr/bin/runc"),
            Action::Run,
            "0123456789abcdef",
            output.as_bytes(),
        )
        .to_string()
    }

    #[test]
    fn the_last_error_of_a_log_counts() {
        let log = r#"{"level":"warning","msg":"a"}
{"level":"error","msg":"runc create failed: x"}
"#;
        assert_eq!(
            text(log),
            "/usr/bin/runc cannot run container 0123456789ab: runc create failed: x"
        );
    }

    #[test]
    fn text_is_put_on_one_line() {
        assert_eq!(
            text("time=\"2026-01-01\" level=error msg=\"say \\\"no\\\"\"\n\nmore\n"),
            "/usr/bin/runc cannot run container 0123456789ab: say \"no\"; more"
        );
        assert!(text("").ends_with(": it said nothing"));
    }

    #[test]
    fn what_made_runc_end_is_said_before_that_it_ended() {
        let log = r#"{"level":"fatal","msg":"nsexec[7]: failed to update /proc/self/oom_score_adj: Permission denied"}
{"level":"error","msg":"runc create failed: can't get final child's PID from pipe: EOF"}
"#;
        let text = text(log);
        assert!(
            text.contains(": nsexec[7]: failed to update /proc/self/oom_score_adj: "),
            "{text}"
        );
        assert!(text.contains("; runc create failed: "), "{text}");
        assert!(text.ends_with("remove --oom-score-adj)"), "{text}");
    }

    #[test]
    fn known_trouble_has_a_hint() {
        for (said, hint) in [
            (
                "cgroups in hybrid mode not supported, drop all controllers from cgroupv2",
                "use runc",
            ),
            ("config provided but seccomp not supported", "update both"),
            ("error setting rlimit type 7: operation not permitted", "LimitNOFILE= in its unit"),
            ("setrlimit `RLIMIT_NOFILE`: Operation not permitted", "LimitNOFILE= in its unit"),
            ("exec: \"a\": executable file not found in $PATH", "the entry point and the image"),
            ("executable file `a` not found in $PATH", "the entry point and the image"),
            ("exec: \"/a\": stat /a: no such file or directory", "the entry point and the image"),
            ("exec: \"/bin\": permission denied", "the entry point and the image"),
            ("open executable: Operation not permitted", "the entry point and the image"),
            ("exec container process `/a`: Exec format error", "check --platform"),
            ("mkdir /sys/fs/cgroup/a: Read-only file system", "see container-hook doctor"),
            ("mount proc to /proc: Operation not permitted", "see container-hook doctor"),
        ] {
            let text = text(said);
            assert!(text.ends_with(&format!("{hint})")), "{text}");
        }
    }
}
