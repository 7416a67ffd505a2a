//! The program with resource limits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Limit of the CPU time of a run, far above the normal duration. A run that reaches it does not scale linearly.
const CPU_SECONDS: u32 = 60;

/// Limit of the wall-clock time, for runs that wait without using CPU time.
const CLOCK_SECONDS: u32 = 600;

/// A hook directory `hooks.d` and a `config.json`, removed with the value.
pub(crate) struct LimitedDir {
    temp: tempfile::TempDir,
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct LimitedRun {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Commands that read hook files.
const HOOK_COMMANDS: [&[&str]; 6] = [
    &["list", "--format", "json"],
    &["explain", "config.json", "--consumers", "--format", "json"],
    &["validate", "hooks.d/a.json"],
    &["lint", "hooks.d"],
    &["lint", "hooks.d", "--format", "sarif"],
    &["migrate", "hooks.d/a.json"],
];

/// Commands that read a configuration.
const CONFIG_COMMANDS: [&[&str]; 3] =
    [&["explain", "config.json"], &["inject", "config.json"], &["inject", "config.json", "--diff"]];

impl LimitedDir {
    pub(crate) fn new() -> Self {
        let place = LimitedDir { temp: tempfile::tempdir().unwrap() };
        fs::create_dir(place.path("hooks.d")).unwrap();
        place.write(
            "config.json",
            r#"{"process": {"args": ["/bin/sh"]}, "annotations": {"a": "b"}}"#,
        );
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs the program with a memory limit.
    #[track_caller]
    pub(crate) fn run(&self, mebibytes: u32, args: &[&str]) -> LimitedRun {
        let program = Path::new(env!("CARGO_BIN_EXE_oci-hooks"));
        self.run_program(program, mebibytes, args)
    }

    /// Runs all commands with a memory limit. Each must succeed or report an error.
    #[track_caller]
    pub(crate) fn run_all(&self, mebibytes: u32) {
        self.run_each(mebibytes, &HOOK_COMMANDS);
        self.run_all_on_config(mebibytes);
    }

    /// Runs only the commands that read a configuration.
    #[track_caller]
    pub(crate) fn run_all_on_config(&self, mebibytes: u32) {
        self.run_each(mebibytes, &CONFIG_COMMANDS);
    }

    #[track_caller]
    fn run_each(&self, mebibytes: u32, commands: &[&[&str]]) {
        for args in commands {
            let ran = self.run(mebibytes, args);
            assert!(ran.is_answer(), "{args:?}: {:?} {:.2000}", ran.code, ran.stderr);
        }
    }

    #[track_caller]
    fn run_program(&self, program: &Path, mebibytes: u32, args: &[&str]) -> LimitedRun {
        // Limits the address space, because the memory in use cannot be limited.
        let script = r#"ulimit -v "$1" && ulimit -t "$2" && shift 2 && exec timeout -s KILL "$@""#;
        let output = Command::new("/bin/sh")
            .args(["-c", script, "sh"])
            .args([
                (mebibytes * 1024).to_string(),
                CPU_SECONDS.to_string(),
                CLOCK_SECONDS.to_string(),
            ])
            .arg(program)
            .args(args)
            .arg("--hooks-dir=hooks.d")
            .current_dir(self.temp.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output()
            .unwrap();
        LimitedRun {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl LimitedRun {
    /// Returns whether the program exited on its own, without a panic, a signal or a limit.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.code, Some(0..=2)) && !self.stderr.contains("panicked")
    }
}

#[test]
fn limits_are_enforced() {
    let place = LimitedDir::new();
    let run = |mebibytes, script: &str| {
        place.run_program(Path::new("/bin/sh"), mebibytes, &["-c", script])
    };
    assert!(run(64, "exit 2").is_answer());
    // `tail` keeps the whole line in memory.
    assert!(run(512, "head -c 100M /dev/zero | tail -n 1 >/dev/null || exit 99").is_answer());
    assert!(!run(64, "head -c 100M /dev/zero | tail -n 1 >/dev/null || exit 99").is_answer());
    assert!(!run(64, "kill -9 $$").is_answer());
    assert!(!run(64, "echo thread main panicked >&2").is_answer());
}
