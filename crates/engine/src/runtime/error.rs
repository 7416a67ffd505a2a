//! Errors of runtimes, with hints.

use std::fmt;
use std::path::{Path, PathBuf};

use oci_hooks_files::process::RunError;
use serde::Deserialize;

use super::kind::RuntimeKind;

/// Operation for which a runtime is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the names of the subcommands")]
pub enum RuntimeAction {
    Run,
    Exec,
    Kill,
    Pause,
    Resume,
    Delete,
    State,
}

impl fmt::Display for RuntimeAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuntimeAction::Run => "run",
            RuntimeAction::Exec => "execute a process in",
            RuntimeAction::Kill => "kill",
            RuntimeAction::Pause => "pause",
            RuntimeAction::Resume => "resume",
            RuntimeAction::Delete => "delete",
            RuntimeAction::State => "report the state of",
        })
    }
}

/// Errors of calling a runtime.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The runtime could not be executed.
    #[error(transparent)]
    Execute(#[from] RunError),
    /// The runtime exited with an error.
    #[error("{} cannot {action} container {id}: {message}{}", program.display(), Hint(*hint))]
    Failed {
        program: PathBuf,
        action: RuntimeAction,
        id: String,
        /// Error output, joined to one line.
        message: String,
        hint: Option<&'static str>,
    },
    /// The runtime did not end in time.
    #[error(
        "{} did not {action} container {id} within {seconds} seconds{}", program.display(), Hint(*hint)
    )]
    TimedOut {
        program: PathBuf,
        action: RuntimeAction,
        id: String,
        seconds: u64,
        hint: Option<&'static str>,
    },
    /// The runtime lacks a capability that jobs need.
    #[error("{} ({}) cannot run jobs: {reason}", program.display(), kind.name())]
    Unfit { program: PathBuf, kind: RuntimeKind, reason: &'static str },
    /// The runtime's output could not be parsed.
    #[error("{} reported a malformed state of container {id}", program.display())]
    Answer { program: PathBuf, id: String, source: serde_json::Error },
}

struct Hint(Option<&'static str>);

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |hint| write!(f, " ({hint})"))
    }
}

impl RuntimeError {
    /// Returns the error for a runtime's output, which is text or a log of JSON lines.
    pub fn from_output(program: &Path, action: RuntimeAction, id: &str, output: &[u8]) -> Self {
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

impl RuntimeError {
    /// Returns the exit code of a container whose program the runtime could not start, as of Docker and shells;
    /// none for other errors.
    pub fn program_code(&self) -> Option<u8> {
        let RuntimeError::Failed { action: RuntimeAction::Run, message, .. } = self else {
            return None;
        };
        let message = message.to_lowercase();
        // runc's message about a missing path has the error of stat(2).
        let is_missing = message.contains("executable file")
            || message.contains("exec: \"") && message.contains(": no such file or directory");
        let is_of_program = || PROGRAM_ERRORS.iter().any(|part| message.contains(part));
        is_missing.then_some(127).or_else(|| is_of_program().then_some(126))
    }
}

/// Parts of messages, in lower case, about programs that exist but cannot be executed.
const PROGRAM_ERRORS: [&str; 4] =
    ["exec: \"", "open executable", "exec container process", "exec format error"];

/// Message of a runtime without error output, such as crun if a hook fails.
pub const NO_OUTPUT: &str = "no error output";

#[derive(Deserialize)]
struct RuntimeLogLine {
    level: String,
    msg: String,
}

/// Extracts the error message from an output: the fatal entries and the last error of a JSON log, else all lines.
fn message(output: &str) -> String {
    let entries =
        output.lines().filter_map(|line| serde_json::from_str::<RuntimeLogLine>(line).ok());
    let (mut fatal, rest): (Vec<RuntimeLogLine>, Vec<RuntimeLogLine>) =
        entries.partition(|line| line.level == "fatal");
    // runc's nsexec logs the cause as fatal; the rest of runc then logs only that nsexec is gone.
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
    if text.is_empty() { NO_OUTPUT.to_owned() } else { text }
}

/// Hints by parts of messages of runc, crun and youki, in lower case.
const HINTS: [(&str, &str); 13] = [
    (
        "root network namespace",
        "this runsc does not support network namespaces of this kernel: update it, or name a script that adds \
         --network=host, with which containers use the sockets of the host's kernel, in the job's network",
    ),
    (
        "cgroups in hybrid mode",
        "crun does not support hosts with both cgroup v1 and v2: boot with \
         systemd.unified_cgroup_hierarchy=1, or use runc",
    ),
    ("seccomp", "the runtime may be built without seccomp or with an old libseccomp: update both"),
    (
        "rlimit",
        "a resource limit (--ulimit, or `open-files` under [limits]) is higher than this process may set: lower it, or raise the limit of the runner's \
         service, for example LimitNOFILE= in its unit; or root has no CAP_SYS_RESOURCE, and only a step of the job \
         has limits: set them for the job too",
    ),
    (
        "oom_score_adj",
        "the OOM score adjustment is lower than this process may set: remove --oom-score-adj",
    ),
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
        "a directory the runtime needs is mounted read-only: if it is a cgroup, `doctor` names the fix",
    ),
    ("pivot_root", "the image store must not be on the initial ramfs"),
    (
        "no space left on device",
        "free some space: `prune --all` removes all images that no container uses",
    ),
    (
        "operation not permitted",
        "the runtime lacks a privilege, as is usual inside another container: `doctor` names it",
    ),
];

const NOT_EXECUTABLE: &str =
    "the image lacks the program, or its user may not run it: check the entry point and the image";

fn hint(message: &str) -> Option<&'static str> {
    let message = message.to_lowercase();
    HINTS.iter().find(|(part, _)| message.contains(part)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &str) -> String {
        RuntimeError::from_output(
            Path::new("/usr/bin/runc"),
            RuntimeAction::Run,
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
        assert!(text("").ends_with(": no error output"));
    }

    #[test]
    fn cause_precedes_the_fact_that_runc_ended() {
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
    fn a_program_that_cannot_be_started_has_the_exit_code_of_a_shell() {
        for (message, code) in [
            ("exec: \"/a\": stat /a: no such file or directory", Some(127)),
            ("exec: \"a\": executable file not found in $PATH", Some(127)),
            ("executable file `a` not found in $PATH: No such file or directory", Some(127)),
            ("exec: \"/a\": permission denied", Some(126)),
            ("open executable: Permission denied", Some(126)),
            ("exec container process `/a`: Exec format error", Some(126)),
            ("exec container process `/a`: No such file or directory", Some(126)),
            ("mount proc to /proc: Operation not permitted", None),
        ] {
            let program = Path::new("/usr/bin/runc");
            let of = |action| RuntimeError::from_output(program, action, "0", message.as_bytes());
            assert_eq!(of(RuntimeAction::Run).program_code(), code, "{message}");
            assert_eq!(of(RuntimeAction::Delete).program_code(), None, "{message}");
        }
    }

    #[test]
    fn known_errors_have_a_hint() {
        for (said, hint) in [
            (
                "cgroups in hybrid mode not supported, drop all controllers from cgroupv2",
                "use runc",
            ),
            ("cannot run with network enabled in root network namespace", "in the job's network"),
            ("config provided but seccomp not supported", "update both"),
            ("error setting rlimit type 7: operation not permitted", "set them for the job too"),
            ("setrlimit `RLIMIT_NOFILE`: Operation not permitted", "set them for the job too"),
            ("exec: \"a\": executable file not found in $PATH", "the entry point and the image"),
            ("executable file `a` not found in $PATH", "the entry point and the image"),
            ("exec: \"/a\": stat /a: no such file or directory", "the entry point and the image"),
            ("exec: \"/bin\": permission denied", "the entry point and the image"),
            ("open executable: Operation not permitted", "the entry point and the image"),
            ("exec container process `/a`: Exec format error", "check --platform"),
            ("mkdir /sys/fs/cgroup/a: Read-only file system", "`doctor` names the fix"),
            (
                "write /run/a: no space left on device",
                "`prune --all` removes all images that no container uses",
            ),
            ("mount proc to /proc: Operation not permitted", "`doctor` names it"),
        ] {
            let text = text(said);
            assert!(text.ends_with(&format!("{hint})")), "{text}");
        }
    }
}
