//! A job for the function, and its environment.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use step_runner::engine::CancelHandle;
use step_runner::wire::proto::step_result::Status;
use tempfile::TempDir;

use crate::engine::play::{FinishedJob, GRACE, JobPlay};

/// Programs that jobs call.
const PROGRAMS: [&str; 16] = [
    "basename", "bash", "cat", "chmod", "date", "env", "git", "grep", "ls", "mkfifo", "rm", "sed",
    "sh", "sleep", "sort", "uname",
];

/// A fake of GitLab's program: records its arguments and some variables, and fails if a file says so.
const GITLAB: &str = r#"#!/bin/sh
here=${0%/*}/..
{
  for word; do printf '%s\n' "$word"; done
  printf 'token=%s\nmetadata=%s\nkey=%s\nstatus=%s\n\n' "$CI_JOB_TOKEN" "$CACHE_METADATA" "$STORE_KEY" "$CI_JOB_STATUS"
} >> "$here/calls"
echo "$1 runs"
if [ -e "$here/fail-$1" ]; then exit 5; fi
"#;

/// A directory with everything that a job needs.
pub(crate) struct JobSite {
    dir: TempDir,
    /// Environment of the job, besides PATH and HOME.
    pub(crate) env: Vec<(String, String)>,
    /// Job variables.
    pub(crate) vars: Vec<(String, String)>,
    /// Time between `SIGTERM` and `SIGKILL`.
    pub(crate) grace: Duration,
}

impl JobSite {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "home", "build"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        for program in PROGRAMS {
            let places = ["/usr/local/bin", "/usr/bin", "/bin"];
            let found = places.iter().map(|place| Path::new(place).join(program));
            let found = found.into_iter().find(|path| path.exists());
            symlink(
                found.unwrap_or_else(|| panic!("no {program}")),
                dir.path().join("bin").join(program),
            )
            .unwrap();
        }
        JobSite {
            dir,
            env: Vec::new(),
            vars: vec![("CI_JOB_TOKEN".to_owned(), "job-token".to_owned())],
            grace: GRACE,
        }
    }

    /// Puts the fake of GitLab's program into PATH.
    pub(crate) fn with_gitlab(self) -> Self {
        write_program(&self.path("bin/gitlab-runner"), GITLAB);
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the text of a file.
    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns the arguments of each call of GitLab's program.
    pub(crate) fn calls(&self) -> Vec<Vec<String>> {
        let text = self.text("calls");
        let calls = text.split("\n\n").filter(|call| !call.is_empty());
        calls.map(|call| call.lines().map(str::to_owned).collect()).collect()
    }

    pub(crate) fn run_config(&self, config: &Value) -> JobPlay {
        self.run_text(&config.to_string())
    }

    pub(crate) fn run_text(&self, config: &str) -> JobPlay {
        // The runner escapes expressions too.
        let config = config.replace("${{", "\\${{");
        let steps = json!({"run": [
            {"name": "concrete", "step": "builtin://concrete", "inputs": {"config": config}},
        ]});
        let mut play = JobPlay::new(self.path("build"), &format!("{{}}\n---\n{steps}\n"));
        let path = |name: &str| self.path(name).to_string_lossy().into_owned();
        play.env = [("PATH".to_owned(), path("bin")), ("HOME".to_owned(), path("home"))].into();
        play.env.extend(self.env.iter().cloned());
        play.vars.extend(self.vars.iter().cloned());
        play.grace = self.grace;
        play
    }

    pub(crate) fn run(&self, config: &Value) -> FinishedJob {
        self.run_config(config).run()
    }

    /// Runs a job, and cancels it when its log contains a text.
    pub(crate) fn cancel_at(&self, config: &Value, at: &str, cancel: &CancelHandle) -> FinishedJob {
        let mut is_heard = false;
        self.run_config(config).run_until(cancel, |text| {
            if !is_heard && text.contains(at) {
                is_heard = true;
                cancel.cancel(step_runner::engine::CancelReason::Requested);
            }
        })
    }
}

/// Returns a job without sources that runs these scripts.
pub(crate) fn job(scripts: &[(&str, &[&str])]) -> Value {
    let steps: Vec<_> = scripts
        .iter()
        .map(|(name, script)| {
            let is_after = *name == "after_script";
            json!({"step": name, "script": script, "on_success": true, "on_failure": is_after})
        })
        .collect();
    json!({
        "id": 7, "token": "job-token", "base_url": "https://gitlab.example", "shell": "bash",
        "cache_dir": "/cache/g/p", "after_script_timeout": 300_000_000_000_i64,
        "after_script_ignore_errors": true, "get_sources": {"git_strategy": "none"}, "steps": steps,
        "cleanup": {"git_strategy": "none"},
    })
}

pub(crate) fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs git without a user's configuration.
pub(crate) fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut git = Command::new("git");
    git.current_dir(directory).args(arguments).env("HOME", directory);
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@b"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@b"),
        ("GIT_ALLOW_PROTOCOL", "file"),
    ] {
        git.env(name, value);
    }
    let ended = git.output().unwrap();
    assert!(ended.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap().trim().to_owned()
}

#[track_caller]
pub(crate) fn assert_success(played: &FinishedJob) {
    assert_eq!(
        played.outcome.status,
        Status::Success,
        "{}\n{}",
        played.outcome.message,
        played.text
    );
}

/// Asserts that a text contains these parts in this order.
#[track_caller]
pub(crate) fn assert_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let at =
            rest.find(part).unwrap_or_else(|| panic!("no {part:?} where it should be in:\n{text}"));
        rest = &rest[at + part.len()..];
    }
}
