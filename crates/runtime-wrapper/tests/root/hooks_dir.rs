//! A hook directory whose hooks write files for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::program;
use serde_json::{Value, json};

pub(crate) struct HooksDir {
    temp: tempfile::TempDir,
}

impl HooksDir {
    pub(crate) fn new() -> Self {
        HooksDir { temp: program::temporary_directory() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.temp.path()
    }

    /// Returns the path of a file that hooks write.
    pub(crate) fn output_path(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.output_path(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Writes a hook file that runs a shell script with `DIR` set.
    pub(crate) fn hook(&self, name: &str, script: &str, when: Value, stages: &[&str]) {
        let hook = json!({
            "path": "/bin/sh",
            "args": ["sh", "-c", script],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", format!("DIR={}", self.path().display())],
            "timeout": 100,
        });
        self.file(name, &json!({"version": "1.0.0", "hook": hook, "when": when, "stages": stages}));
    }

    /// Sets the timeout of a hook.
    pub(crate) fn set_timeout(&self, name: &str, seconds: u64) {
        let mut file: Value = serde_json::from_str(&self.read(name)).unwrap();
        file["hook"]["timeout"] = seconds.into();
        self.file(name, &file);
    }

    /// Writes a hook for each stage that saves the container state from standard input to a file of the stage's name.
    pub(crate) fn keep_states(&self, stages: &[&str]) {
        for stage in stages {
            let script = format!("cat >\"$DIR/{stage}\"");
            self.hook(&format!("{stage}.json"), &script, json!({"always": true}), &[stage]);
        }
    }

    pub(crate) fn state(&self, stage: &str) -> Value {
        serde_json::from_str(&self.read(stage)).unwrap()
    }

    pub(crate) fn file(&self, name: &str, content: &Value) {
        fs::write(self.path().join(name), content.to_string()).unwrap();
    }

    /// Writes an executable that calls `oci-hooks-runtime` with this directory: engines do not pass on
    /// environment variables.
    pub(crate) fn runtime(&self) -> PathBuf {
        let path = self.output_path("oci-hooks-runtime");
        let wrapper = env!("CARGO_BIN_EXE_oci-hooks-runtime");
        let script =
            format!("#!/bin/sh\nOCI_HOOKS_DIRS={} exec {wrapper} \"$@\"\n", self.path().display());
        program::write_program(&path, &script);
        path
    }

    /// Returns `oci-hooks inject` with this directory.
    pub(crate) fn inject(&self, options: &[&str]) -> Command {
        let mut command = Command::new(program::built_program("oci-hooks"));
        command.arg("inject").arg("--hooks-dir").arg(self.path()).args(options);
        command
    }
}
