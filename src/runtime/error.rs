//! What a runtime says when it fails, and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::sys::process::RunError;

/// What a runtime was called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the names of the subcommands")]
pub enum Action {
    Create,
    Start,
    Run,
    Exec,
    Kill,
    Delete,
    State,
    Version,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Create => "create",
            Action::Start => "start",
            Action::Run => "run",
            Action::Exec => "execute a process in",
            Action::Kill => "kill",
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
        /// The runtime.
        program: PathBuf,
        /// What it was called for.
        action: Action,
        /// The container.
        id: String,
        /// What it said, on one line.
        message: String,
        /// What to do.
        hint: Option<&'static str>,
    },
    /// It did not end in time.
    #[error("{} did not {action} container {id} within {seconds} seconds", program.display())]
    TimedOut {
        /// The runtime.
        program: PathBuf,
        /// What it was called for.
        action: Action,
        /// The container.
        id: String,
        /// The time it had.
        seconds: u64,
    },
    /// Its answer could not be understood.
    #[error("cannot understand what {} says to {action} a container", program.display())]
    Answer {
        /// The runtime.
        program: PathBuf,
        /// What it was called for.
        action: Action,
        /// Why.
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

/// Returns what of an output is the error: the last entry of a log that is one, or all lines.
fn message(output: &str) -> String {
    let mut entries = output.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let is_error = |line: &Line| matches!(line.level.as_str(), "error" | "fatal");
    let error = entries.rfind(is_error);
    let text = match error {
        Some(line) => line.msg,
        None => {
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

/// Parts of messages of runc, crun and youki, and what helps.
const HINTS: [(&str, &str); 10] = [
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
        "executable file not found",
        "the image has no such program in its PATH: check the entry point and the image",
    ),
    (
        "exec format error",
        "the image is for another processor, or a script has no #! line: check --platform",
    ),
    (
        "read-only file system",
        "a directory the runtime needs is mounted read-only: if it is a cgroup, see container-hook \
         doctor",
    ),
    ("pivot_root", "the store must not be on the initial ramfs"),
    ("No space left on device", "free some disk, or run container-hook prune"),
    ("operation not permitted", "the runtime needs root: see container-hook install --sudo"),
];

fn hint(message: &str) -> Option<&'static str> {
    HINTS.iter().find(|(part, _)| message.contains(part)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &str) -> String {
        RuntimeError::failed(
            Path::new("/usr/bin/runc"),
            Action::Create,
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
            "/usr/bin/runc cannot create container 0123456789ab: runc create failed: x"
        );
    }

    #[test]
    fn text_is_put_on_one_line() {
        assert_eq!(
            text("time=\"2026-01-01\" level=error msg=\"say \\\"no\\\"\"\n\nmore\n"),
            "/usr/bin/runc cannot create container 0123456789ab: say \"no\"; more"
        );
        assert!(text("").ends_with(": it said nothing"));
    }

    #[test]
    fn known_trouble_has_a_hint() {
        let text = text("cgroups in hybrid mode not supported, drop all controllers from cgroupv2");
        assert!(text.ends_with("or use runc)"), "{text}");
    }
}
